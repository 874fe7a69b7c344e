// Discretization of one state at a time in double: right for every delta and A that a number holds.  It is what float64
// runs on, and what float32 turns to at the steps that the vectors' arithmetic does not reach.

#pragma once

#include <cmath>
#include <complex>

using Complex128 = std::complex<double>;

// 1 / A, whose square may be no number
inline Complex128 inverse(Complex128 A) {
    const double m = std::fmax(std::fabs(A.real()), std::fabs(A.imag())), x = A.real() / m, y = A.imag() / m;
    const double size = (x * x + y * y) * m;
    return {x / size, -y / size};
}

// A product without the recovery of infinities that C++ asks for, which costs a call.
inline Complex128 times(Complex128 x, Complex128 y) {
    return {x.real() * y.real() - x.imag() * y.imag(), x.real() * y.imag() + x.imag() * y.real()};
}

// Zero-order hold's A_bar = e^z, z = delta A, B_bar = (e^z - 1) / A and the slope d B_bar / dA = (delta A_bar - B_bar) / A
// = delta^2 phi1'(z), phi1(z) = (e^z - 1) / z.  All but A_bar only where asked for.
struct ExactStep {
    Complex128 A_bar, B_bar, slope;

    ExactStep() {}
    ExactStep(double delta, Complex128 A, Complex128 inverse_A, bool zoh, bool derivative) {
        const Complex128 z = delta * A;
        const double size = std::exp(z.real()), minus_1 = std::expm1(z.real());
        double sine = std::sin(z.imag()), cosine = std::cos(z.imag()), half = std::sin(z.imag() / 2);
        if (size == 0) sine = half = 0, cosine = 1;  // wherever it is on its circle, of radius 0
        // e^z - 1 without cancellation, and e^z out of it where that rounds less, of itself where it is the smaller
        const Complex128 E(minus_1 * cosine - 2 * half * half, sine == 0 ? 0 : size * sine);
        A_bar = {size < 0.5 ? size * cosine : 1 + E.real(), E.imag()};
        if (!zoh) return;
        const double length = std::fabs(z.real()) + std::fabs(z.imag());
        B_bar = length < 1e-9 ? delta * (1.0 + 0.5 * z) : z.imag() == 0 ? E.real() * inverse_A.real() : times(E, inverse_A);
        if (!derivative) return;
        if (length >= 0.5) {
            slope = z.imag() == 0 ? (delta * A_bar.real() - B_bar.real()) * inverse_A.real()
                                  : times(delta * A_bar - B_bar, inverse_A);
            return;
        }
        Complex128 power = 0.5, total = 0;  // sum over k of (k + 1) / (k + 2)! z^k
        for (int k = 0; k < 16; ++k) {
            total += double(k + 1) * power;
            power = times(power, z / double(k + 3));
        }
        slope = delta * delta * total;
    }
};
