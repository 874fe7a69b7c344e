// -log softmax(logits)[target] of rows of logits, and its gradient in their place: a row is read from memory once.

#include "streams.h"

// Field by field the ctypes structure of cpu_cross_entropy.py.
struct CrossEntropyArguments {
    int64_t rows, numbers, is_double, threads;
    void* logits;            // (rows, numbers), contiguous
    const int64_t* targets;  // (rows)
    const bool* ignored;     // (rows)
    const void* scale;       // (rows), what each loss's gradient is; null: the logits stay
    void* losses;            // (rows)
};

namespace {

template <class L>
void one(const CrossEntropyArguments& g, int64_t row) {
    using T = typename L::Scalar;
    using V = typename L::V;
    const int64_t n = g.numbers;
    T* x = static_cast<T*>(g.logits) + row * n;
    T& loss = static_cast<T*>(g.losses)[row];
    if (g.ignored[row]) {
        loss = 0;
        if (g.scale) std::fill(x, x + n, T(0));
        return;
    }
    V largest = splat<V>(T(-INFINITY));
    vectors<L>(n, [&](int64_t i, int count) {
        V v = read<L>(x + i, count);
        for (int j = count; j < L::W; ++j) v[j] = T(-INFINITY);
        largest = v > largest ? v : largest;
    });
    T top = largest[0];
    for (int j = 1; j < L::W; ++j) top = std::max(top, largest[j]);
    const T target = x[g.targets[row]] - top;
    double total = 0;
    V part{};
    int64_t lately = 0;
    vectors<L>(n, [&](int64_t i, int count) {
        V e = Elementary<L>::exp_of_negative(read<L>(x + i, count) - top);
        for (int j = count; j < L::W; ++j) e[j] = 0;
        part += e;
        if (++lately == LATELY) total += sum<L>(part), part = V{}, lately = 0;
        if (g.scale) write<L>(x + i, e, count);
    });
    total += sum<L>(part);
    loss = static_cast<T>(std::log(total) - target);
    if (!g.scale) return;
    const T scale = static_cast<const T*>(g.scale)[row], factor = static_cast<T>(scale / total);
    vectors<L>(n, [&](int64_t i, int count) { write<L>(x + i, read<L>(x + i, count) * factor, count); });
    x[g.targets[row]] -= scale;
}

template <class L>
void run(const CrossEntropyArguments& g) {
#pragma omp parallel for num_threads(g.threads) schedule(static) if (g.threads > 1)
    for (int64_t row = 0; row < g.rows; ++row) one<L>(g, row);
}

}  // namespace

extern "C" void cross_entropy(const CrossEntropyArguments* g) { g->is_double ? run<Double>(*g) : run<Float>(*g); }
