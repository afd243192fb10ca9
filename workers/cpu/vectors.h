// As many float32 at once as the processor has room for: loading, summing, exp and GELU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
inline Vec all(float x) { return x - Vec{}; }  // a sum would turn -0 into 0, and so take a step

#if defined(__AVX512F__)
constexpr bool HALVES = true;
inline Vec load(const uint16_t* p) {
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#elif defined(__F16C__) && defined(__AVX__)
constexpr bool HALVES = true;
inline Vec load(const uint16_t* p) {
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#elif defined(__aarch64__)
constexpr bool HALVES = true;
inline Vec load(const uint16_t* p) { return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
#else
constexpr bool HALVES = false;
inline Vec load(const uint16_t*) { return Vec{}; }
#endif

#if defined(__AVX512F__)
inline float sum(Vec v) { return _mm512_reduce_add_ps((__m512)v); }
#elif defined(__AVX__)
inline float sum(Vec v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
#else
inline float sum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
#endif

inline Vec largest(Vec a, Vec b) { return a > b ? a : b; }

// exp for x <= 0, relative error 2e-7; what underflows is 0.
inline Vec exponential(Vec x) {
  x = largest(x, all(-87.0f));
  const Vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  Vec n = (x * 1.44269504f + magic) - magic;
  Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints exponent = __builtin_convertvector(n, Ints) + 127;
  Ints bits = exponent << 23;
  Vec scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x > all(-86.9f) ? p * scale : Vec{};
}

// GELU with erf as in Abramowitz & Stegun 7.1.28 (absolute error 3e-7), constants scaled by 2^(-i/2).
inline Vec gelu(Vec x) {
  Vec a = x < 0.0f ? -x : x;
  Vec q = 0.0000380036f + a * (0.0000488906f + a * 0.0000053830f);
  q = 1.0f + a * (0.0498673470f + a * (0.0211410061f + a * (0.0032776263f + a * q)));
  q = q * q;
  q = q * q;
  q = q * q;
  return 0.5f * (x + a * (1.0f - 1.0f / (q * q)));
}

// Scores to weights in place; `count` is a multiple of LANES. Their sum.
inline float soften(float* scores, int count) {
  Vec most = load(scores);
  for (int i = LANES; i < count; i += LANES) most = largest(most, load(scores + i));
  float top = most[0];
  for (int i = 1; i < LANES; i++) top = most[i] > top ? most[i] : top;
  Vec total = {};
  for (int i = 0; i < count; i += LANES) {
    Vec e = exponential(load(scores + i) - top);
    store(scores + i, e);
    total += e;
  }
  return sum(total);
}

struct Norm {
  const float *gain, *bias;
};

// A layer norm with mlx.nn.LayerNorm's epsilon; `width` is a multiple of LANES.
inline void normalise(const Norm& norm, const float* x, float* y, int width) {
  Vec total = {}, squares = {};
  for (int i = 0; i < width; i += LANES) total += load(x + i);
  float mean = sum(total) / width;
  for (int i = 0; i < width; i += LANES) {
    Vec d = load(x + i) - mean;
    squares += d * d;
  }
  float scale = 1.0f / std::sqrt(sum(squares) / width + 1e-5f);
  for (int i = 0; i < width; i += LANES)
    store(y + i, (load(x + i) - mean) * scale * load(norm.gain + i) + load(norm.bias + i));
}

}  // namespace
