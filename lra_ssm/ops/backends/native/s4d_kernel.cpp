// S4D's convolution kernel on a CPU: k_l = 2 Re sum_n w_n exp(z_n l), l = 0 .. L-1, and its gradients.
//
// K kernels share the D x N exponents z.  Time is cut into blocks of T: exp(z (iT + j)) = exp(z T)^i exp(z j), where the
// powers below T are a table for one channel at a time, and everything that is multiplied more than T times is double:
// the phase of z l reaches thousands of radians.  Lanes run along states, two vectors at once.

#include <complex>
#include <cstdlib>
#include <memory>
#include <vector>

#include "simd.h"

// Field by field the ctypes structure of cpu_s4d_kernel.py; all contiguous.
struct KernelArguments {
    int64_t kernels, channels, states, length, is_double, threads;
    const double *z, *w;     // (D, N), (K, D, N), complex
    void* kernel;            // (K, D, L): the result, or its gradient
    double *grad_z, *grad_w;  // as z and w
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

    void fill(const double* z, int states) {
        count = states;
        Wide a_re[NV]{}, a_im[NV]{}, q_re[NV]{}, q_im[NV]{};
        for (int n = 0; n < count; ++n) {
            const auto a = std::exp(std::complex<double>(z[2 * n], z[2 * n + 1]));
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

    void read(const double* from, double factor, Wide* re, Wide* im) const {
        for (int v = 0; v < NV; ++v) re[v] = im[v] = Wide{};
        for (int n = 0; n < count; ++n) {
            re[n / L::W][n % L::W] = factor * from[2 * n];
            im[n / L::W][n % L::W] = factor * from[2 * n + 1];
        }
    }

    // Adds this block's part of one kernel, or writes it.
    void forward(const double* w, Scalar* kernel, int64_t length, bool add) const {
        Wide c_re[NV], c_im[NV];
        read(w, 2, c_re, c_im);
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

    // conj(grad w) = 2 sum_l g_l exp(z l) and conj(grad z) = 2 w sum_l l g_l exp(z l), added.
    void backward(const double* w, const Scalar* grad, int64_t length, double* grad_w, double* grad_z) const {
        Wide p_re[NV], p_im[NV], sum_re[NV]{}, sum_im[NV]{}, late_re[NV]{}, late_im[NV]{}, w_re[NV], w_im[NV];
        read(w, 2, w_re, w_im);
        for (int v = 0; v < NV; ++v) p_re[v] = 1 - Wide{}, p_im[v] = Wide{};
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
        for (int v = 0; v < NV; ++v) multiply(late_re[v], late_im[v], w_re[v], w_im[v]);
        for (int n = 0; n < count; ++n) {
            const int v = n / L::W, j = n % L::W;
            grad_w[2 * n] = 2 * sum_re[v][j], grad_w[2 * n + 1] = -2 * sum_im[v][j];
            grad_z[2 * n] += late_re[v][j], grad_z[2 * n + 1] -= late_im[v][j];
        }
    }
};

template <class L, bool Backward>
void run(const KernelArguments& a) {
    const int threads = static_cast<int>(std::max<int64_t>(1, std::min(a.threads, a.channels)));
    auto* memory = static_cast<Block<L>*>(std::aligned_alloc(alignof(Block<L>), threads * sizeof(Block<L>)));
    if (!memory) throw std::bad_alloc();
    const std::unique_ptr<void, decltype(&std::free)> owner(memory, std::free);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#ifdef _OPENMP
        Block<L>& block = memory[omp_get_thread_num()];
#else
        Block<L>& block = memory[0];
#endif
#pragma omp for schedule(static)
        for (int64_t d = 0; d < a.channels; ++d)
            for (int64_t n = 0; n < a.states; n += Block<L>::LANES) {
                const int64_t z = d * a.states + n;
                block.fill(a.z + 2 * z, static_cast<int>(std::min<int64_t>(a.states - n, Block<L>::LANES)));
                for (int64_t k = 0; k < a.kernels; ++k) {
                    const int64_t w = k * a.channels * a.states + z;
                    auto* kernel = static_cast<typename L::Scalar*>(a.kernel) + (k * a.channels + d) * a.length;
                    if constexpr (Backward)
                        block.backward(a.w + 2 * w, kernel, a.length, a.grad_w + 2 * w, a.grad_z + 2 * z);
                    else
                        block.forward(a.w + 2 * w, kernel, a.length, n > 0);
                }
            }
    }
}

template <bool Backward>
int dispatch(const KernelArguments& a) {
    try {
        a.is_double ? run<Lanes<double, WIDEST / 2>, Backward>(a) : run<Lanes<float, WIDEST>, Backward>(a);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace

// 0, or 1 if there was not enough memory.
extern "C" int s4d_kernel_forward(const KernelArguments* a) { return dispatch<false>(*a); }
extern "C" int s4d_kernel_backward(const KernelArguments* a) { return dispatch<true>(*a); }
