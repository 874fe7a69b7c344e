// S4D's convolution kernel on a CPU, zero-order hold and all: k_l = 2 Re sum_n C_n B_n B_bar_n exp(delta A_n l),
// B_bar = A^-1 (exp(delta A) - 1), l = 0 .. L-1, and its gradients.
//
// K kernels share delta, A and B.  Time is cut into blocks of T: exp(z (iT + j)) = exp(z T)^i exp(z j), z = delta A,
// where the powers below T are a table for one channel at a time, and everything that is multiplied more than T times
// is double: the phase of z l reaches thousands of radians.  Lanes run along states, two vectors at once.

#include "exact.h"
#include "simd.h"

using Complex = Complex128;

// Field by field the ctypes structure of cpu_s4d_kernel.py; all contiguous.
struct KernelArguments {
    int64_t kernels, channels, states, length, is_double, threads;
    const double* delta;                        // (D,)
    const Complex *A, *B, *C;                   // (D, N), (D, N), (K, D, N)
    void* kernel;                               // (K, D, L): the result, or its gradient
    double* grad_delta;                         // as their inputs
    Complex *grad_A, *grad_B, *grad_C;
};

namespace {

constexpr int T = 64, NV = 2;

template <class L>
struct Block {  // NV vectors of states of one channel
    using V = typename L::V;
    using Scalar = typename L::Scalar;
    using Wide = typename Lanes<double, L::W>::V;
    static constexpr int LANES = NV * L::W;

    Wide power_re[NV], power_im[NV];  // exp(z T)
    V re[T][NV], im[T][NV];           // exp(z j)
    int count;                        // states; the lanes beyond are 0

    void fill(const ExactStep* steps, int number) {
        count = number;
        Wide a_re[NV]{}, a_im[NV]{}, q_re[NV]{}, q_im[NV]{};
        for (int n = 0; n < count; ++n) {
            const Complex a = steps[n].A_bar;
            a_re[n / L::W][n % L::W] = a.real(), a_im[n / L::W][n % L::W] = a.imag();
            q_re[n / L::W][n % L::W] = 1;
        }
        for (int j = 0; j < T; ++j)
            for (int v = 0; v < NV; ++v) {
                re[j][v] = __builtin_convertvector(q_re[v], V), im[j][v] = __builtin_convertvector(q_im[v], V);
                multiply(q_re[v], q_im[v], a_re[v], a_im[v]);
            }
        for (int v = 0; v < NV; ++v) power_re[v] = q_re[v], power_im[v] = q_im[v];
    }

    INLINE void multiply(Wide& re, Wide& im, Wide by_re, Wide by_im) {
        const Wide next = re * by_re - im * by_im;
        im = re * by_im + im * by_re;
        re = next;
    }

    // Adds this block's part of 2 Re sum_n w_n exp(z_n l), or writes it.
    void forward(const Complex* w, Scalar* kernel, int64_t length, bool add) const {
        Wide c_re[NV]{}, c_im[NV]{};
        for (int n = 0; n < count; ++n) {
            c_re[n / L::W][n % L::W] = 2 * w[n].real(), c_im[n / L::W][n % L::W] = 2 * w[n].imag();
        }
        V products[T];
        for (int64_t start = 0; start < length; start += T) {
            const int steps = static_cast<int>(std::min<int64_t>(T, length - start));
            V left_re[NV], left_im[NV];
            for (int v = 0; v < NV; ++v) {
                left_re[v] = __builtin_convertvector(c_re[v], V), left_im[v] = __builtin_convertvector(-c_im[v], V);
                multiply(c_re[v], c_im[v], power_re[v], power_im[v]);
            }
            for (int j = 0; j < T; ++j)
                products[j] = (left_re[0] * re[j][0] + left_re[1] * re[j][1]) + (left_im[0] * im[j][0] + left_im[1] * im[j][1]);
            for (int j = 0; j < steps; j += L::W) {
                V k = sums<L>(products + j);
                if (j + L::W <= steps) {
                    if (add) k += load<V>(kernel + start + j);
                    store(kernel + start + j, k);
                } else {
                    for (int i = 0; j + i < steps; ++i) kernel[start + j + i] = k[i] + (add ? kernel[start + j + i] : 0);
                }
            }
        }
    }

    // The conjugated gradients of w and of z: 2 sum_l g_l exp(z l), and w times 2 sum_l l g_l exp(z l), which is added.
    void backward(const Complex* w, const Scalar* grad, int64_t length, Complex* grad_w, Complex* grad_z) const {
        Wide p_re[NV], p_im[NV], sum_re[NV]{}, sum_im[NV]{}, late_re[NV]{}, late_im[NV]{};
        for (int v = 0; v < NV; ++v) p_re[v] = splat<Wide>(1.0), p_im[v] = Wide{};
        for (int64_t start = 0; start < length; start += T) {
            const int steps = static_cast<int>(std::min<int64_t>(T, length - start));
            V s_re[NV]{}, s_im[NV]{}, r_re[NV]{}, r_im[NV]{};
            for (int j = 0; j < steps; ++j) {
                const Scalar g = grad[start + j], jg = g * j;
                for (int v = 0; v < NV; ++v) {
                    s_re[v] += g * re[j][v], s_im[v] += g * im[j][v];
                    r_re[v] += jg * re[j][v], r_im[v] += jg * im[j][v];
                }
            }
            for (int v = 0; v < NV; ++v) {
                Wide a = __builtin_convertvector(s_re[v], Wide), b = __builtin_convertvector(s_im[v], Wide);
                Wide c = __builtin_convertvector(r_re[v], Wide) + double(start) * a;
                Wide d = __builtin_convertvector(r_im[v], Wide) + double(start) * b;
                multiply(a, b, p_re[v], p_im[v]), multiply(c, d, p_re[v], p_im[v]);
                sum_re[v] += a, sum_im[v] += b, late_re[v] += c, late_im[v] += d;
                multiply(p_re[v], p_im[v], power_re[v], power_im[v]);
            }
        }
        for (int n = 0; n < count; ++n) {
            const int v = n / L::W, j = n % L::W;
            grad_w[n] = 2.0 * Complex(sum_re[v][j], sum_im[v][j]);
            grad_z[n] += 2.0 * w[n] * Complex(late_re[v][j], late_im[v][j]);
        }
    }
};

// One channel's states from n on: its part of all kernels, or the gradients of all that make it up.
template <class L, bool Backward>
void work(const KernelArguments& a, Block<L>& block, int64_t d, int64_t n) {
    constexpr int LANES = Block<L>::LANES;
    const int64_t first = d * a.states + n, plane = a.channels * a.states;
    const int count = static_cast<int>(std::min<int64_t>(a.states - n, LANES));
    const double delta = a.delta[d];
    const Complex *A = a.A + first, *B = a.B + first;
    ExactStep steps[LANES];
    Complex w[LANES], grad_w[LANES], grad_z[LANES]{}, grad_B[LANES]{}, grad_B_bar[LANES]{};
    for (int i = 0; i < count; ++i) steps[i] = ExactStep(delta, A[i], inverse(A[i]), true, Backward);
    block.fill(steps, count);
    for (int64_t k = 0; k < a.kernels; ++k) {
        const Complex* C = a.C + k * plane + first;
        for (int i = 0; i < count; ++i) w[i] = C[i] * B[i] * steps[i].B_bar;
        auto* kernel = static_cast<typename L::Scalar*>(a.kernel) + (k * a.channels + d) * a.length;
        if constexpr (Backward) {
            block.backward(w, kernel, a.length, grad_w, grad_z);
            for (int i = 0; i < count; ++i) {
                a.grad_C[k * plane + first + i] = std::conj(grad_w[i] * B[i] * steps[i].B_bar);
                grad_B[i] += grad_w[i] * C[i] * steps[i].B_bar;
                grad_B_bar[i] += grad_w[i] * C[i] * B[i];
            }
        } else {
            block.forward(w, kernel, a.length, n > 0);
        }
    }
    if constexpr (Backward)
        for (int i = 0; i < count; ++i) {
            a.grad_B[first + i] = std::conj(grad_B[i]);
            a.grad_A[first + i] = std::conj(grad_z[i] * delta + grad_B_bar[i] * steps[i].slope);
            a.grad_delta[d] += (grad_z[i] * A[i] + grad_B_bar[i] * steps[i].A_bar).real();
        }
}

template <class L, bool Backward>
void run(const KernelArguments& a) {
    const int threads = static_cast<int>(std::max<int64_t>(1, std::min(a.threads, a.channels)));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Block<L> block;
#pragma omp for schedule(static)
        for (int64_t d = 0; d < a.channels; ++d)
            for (int64_t n = 0; n < a.states; n += Block<L>::LANES) work<L, Backward>(a, block, d, n);
    }
}

template <bool Backward>
void dispatch(const KernelArguments& a) {
    a.is_double ? run<Lanes<double, WIDEST / 2>, Backward>(a) : run<Lanes<float, WIDEST>, Backward>(a);
}

}  // namespace

extern "C" void s4d_kernel_forward(const KernelArguments* a) { dispatch<false>(*a); }
extern "C" void s4d_kernel_backward(const KernelArguments* a) { dispatch<true>(*a); }
