// Tiles: the part of a tensor that one task works on at a time, copied to and from compact aligned rows.
//
// A tensor may have any strides; its numbers are of the arithmetic's type T, as a tile's are.

#pragma once

#include "simd.h"

// A (batch, channel or group, state, time) tensor; `imag` is null for a real one, and strides count real numbers.
struct Tensor {
    void* data;
    void* imag;
    int64_t batch, row, state, time;
};

// to[i * to_stride + j] = from[i * outer + j * inner], i < rows, j < columns
template <class L, class T = typename L::Scalar>
INLINE void gather(T* to, int64_t to_stride, const T* from, int64_t outer, int64_t inner, int rows, int columns) {
    using V = typename L::V;
    int i = 0;
    if (inner == 1 && columns == L::W) {
        for (; i < rows; ++i) store(to + i * to_stride, load<V>(from + i * outer));
    } else if (inner == 1) {
        for (; i < rows; ++i) std::memcpy(to + i * to_stride, from + i * outer, columns * sizeof(T));
    } else if (inner == 2) {  // a constant stride is what the compiler needs to vectorise this
        for (; i < rows; ++i)
            for (int j = 0; j < columns; ++j) to[i * to_stride + j] = from[i * outer + 2 * j];
    } else if (outer == 1) {
        const int whole = columns - columns % L::W;
        for (; i + L::W <= rows; i += L::W) {
            for (int j = 0; j < whole; j += L::W) {
                V block[L::W];
                for (int k = 0; k < L::W; ++k) block[k] = load<V>(from + i + (j + k) * inner);
                transpose<L>(block);
                for (int k = 0; k < L::W; ++k) store(to + (i + k) * to_stride + j, block[k]);
            }
            for (int j = whole; j < columns; ++j)
                for (int k = 0; k < L::W; ++k) to[(i + k) * to_stride + j] = from[i + k + j * inner];
        }
    }
    for (; i < rows; ++i)
        for (int j = 0; j < columns; ++j) to[i * to_stride + j] = from[i * outer + j * inner];
}

// The inverse: to[i * outer + j * inner] = from[i * from_stride + j]
template <class L, class T = typename L::Scalar>
INLINE void scatter(T* to, int64_t outer, int64_t inner, const T* from, int64_t from_stride, int rows, int columns) {
    using V = typename L::V;
    int i = 0;
    if (inner == 1 && columns == L::W) {
        for (; i < rows; ++i) store(to + i * outer, load<V>(from + i * from_stride));
    } else if (inner == 1) {
        for (; i < rows; ++i) std::memcpy(to + i * outer, from + i * from_stride, columns * sizeof(T));
    } else if (outer == 1) {
        const int whole = columns - columns % L::W;
        for (; i + L::W <= rows; i += L::W) {
            for (int j = 0; j < whole; j += L::W) {
                V block[L::W];
                for (int k = 0; k < L::W; ++k) block[k] = load<V>(from + (i + k) * from_stride + j);
                transpose<L>(block);
                for (int k = 0; k < L::W; ++k) store(to + i + (j + k) * inner, block[k]);
            }
            for (int j = whole; j < columns; ++j)
                for (int k = 0; k < L::W; ++k) to[i + k + j * inner] = from[(i + k) * from_stride + j];
        }
    }
    for (; i < rows; ++i)
        for (int j = 0; j < columns; ++j) to[i * outer + j * inner] = from[i * from_stride + j];
}

// Rows of `size` steps for the channels d .. d+rows-1 and the steps t .. t+steps-1; the rest of a row is 0.
template <class L>
void load_rows(typename L::Scalar* to, int size, const Tensor& x, int64_t b, int64_t d, int rows, int64_t t, int steps) {
    const auto* from = static_cast<const typename L::Scalar*>(x.data) + b * x.batch + d * x.row + t * x.time;
    gather<L>(to, size, from, x.row, x.time, rows, steps);
    for (int i = 0; i < rows; ++i) std::fill(to + i * size + steps, to + (i + 1) * size, 0);
}

// Asks for the memory of the same rows ahead of their use: a row is too short for the processor to see it coming.
template <class T>
INLINE void prefetch_rows(const Tensor& x, int64_t b, int64_t d, int rows, int64_t t, int steps) {
    if (!x.data) return;
    const int64_t size = sizeof(T);
    const char* data = static_cast<const char*>(x.data) + (b * x.batch + d * x.row + t * x.time) * size;
    const bool along_time = x.time <= x.row;
    const int64_t outer = (along_time ? x.row : x.time) * size, line = (along_time ? steps : rows) * size;
    for (int i = 0; i < (along_time ? rows : steps); ++i)
        for (int64_t byte = 0; byte < line; byte += 64) __builtin_prefetch(data + i * outer + byte);
}

template <class L>
void store_rows(const Tensor& x, int64_t b, int64_t d, int rows, int64_t t, int steps, const typename L::Scalar* from, int size) {
    auto* to = static_cast<typename L::Scalar*>(x.data) + b * x.batch + d * x.row + t * x.time;
    scatter<L>(to, x.row, x.time, from, size, rows, steps);
}

// A variable B or C of one group as vectors over states: tile[(v * size + k) * parts + part] holds the states
// v W .. v W + W-1 of step t + k, 0 beyond N and where the tensor has no imaginary part.
template <class L, int parts>
void load_states(typename L::V* tile, int size, const Tensor& x, int64_t b, int64_t g, int N, int64_t t, int steps) {
    using T = typename L::Scalar;
    const int nv = (N + L::W - 1) / L::W;
    if (N % L::W || (parts == 2 && !x.imag)) std::fill(tile, tile + nv * size * parts, typename L::V{});
    for (int part = 0; part < parts; ++part) {
        const void* data = part ? x.imag : x.data;
        if (!data) continue;
        const T* from = static_cast<const T*>(data) + b * x.batch + g * x.row + t * x.time;
        for (int v = 0, n = 0; n < N; ++v, n += L::W) {
            T* to = reinterpret_cast<T*>(tile + v * size * parts + part);
            gather<L>(to, parts * L::W, from + n * x.state, x.time, x.state, steps, std::min(N - n, L::W));
        }
    }
}

// The inverse.  An imaginary part that the tensor does not have is dropped.
template <class L, int parts>
void store_states(const Tensor& x, int64_t b, int64_t g, int N, int64_t t, int steps, const typename L::V* tile, int size) {
    using T = typename L::Scalar;
    for (int part = 0; part < parts; ++part) {
        void* data = part ? x.imag : x.data;
        if (!data) continue;
        T* to = static_cast<T*>(data) + b * x.batch + g * x.row + t * x.time;
        for (int v = 0, n = 0; n < N; ++v, n += L::W) {
            const T* from = reinterpret_cast<const T*>(tile + v * size * parts + part);
            scatter<L>(to + n * x.state, x.time, x.state, from, parts * L::W, steps, std::min(N - n, L::W));
        }
    }
}
