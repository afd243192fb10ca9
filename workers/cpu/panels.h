// Matrices of weights as they lie in memory, quantized or not, and what multiplies with them.
//
// Outputs lie side by side in panels, so that a vector holds one input's weights of as many outputs. Each output is one
// sum over the inputs in their order, whatever the number of tokens: a token's result is the same to the last bit alone
// and in company.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace {

constexpr int PANEL = 32;
constexpr int PART = 2 * LANES;  // outputs that are summed up at once
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TILE = 12;  // tokens, as many as fit the registers: here 32, else 16
#else
constexpr int TILE = 5;
#endif
constexpr int UNPACKED = 2 * TILE;  // from so many tokens on it pays to turn a panel into float32 first
constexpr int PAIRED = 2;  // up to so many tokens panels are taken in pairs: one alone waits for its own sums

enum Kind : int32_t { FLOAT32, FLOAT16, BFLOAT16, BITS4, BITS8, BITS4_WIDE, BITS8_WIDE };  // WIDE: scales are float32

extern "C" {
// As in matrices.py, which fills it. Outputs are filled up to whole panels.
struct Matrix {
  const void* weight;  // (panels, inputs, PANEL); quantized: (panels, words, PANEL), a word holding inputs side by side
  const void* scales;  // (panels, groups, 2, PANEL): scales and biases of the groups
  const float* bias;   // (panels * PANEL,) or null
  int32_t kind, outputs, inputs, group;
};
}

struct Bfloat {
  uint16_t bits;
};

inline Vec load(const Bfloat* p) {
  typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
  Ints wide = __builtin_convertvector(*reinterpret_cast<const Halves*>(p), Ints) << 16;
  Vec v;
  std::memcpy(&v, &wide, sizeof v);
  return v;
}

// The number that a word's field `place` holds, of each lane.
template <int BITS>
inline Vec level(Ints words, int place) {
#if defined(__AVX512F__)
  if constexpr (BITS == 4) {
    const __m512 levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (Vec)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, 4 * place), levels);
  }
#endif
  return __builtin_convertvector((words >> (BITS * place)) & ((1 << BITS) - 1), Vec);
}

// The weights of PART outputs. each<N>(w, inputs, use) calls use(k, values) for each input k in turn, with two vectors
// for each of N such weights.
template <typename T>
struct Plain {
  const T* weight;
  std::ptrdiff_t apart = PANEL;  // from one input to the next

  Plain(const Matrix& m, int panel, int from)
      : weight(static_cast<const T*>(m.weight) + (std::ptrdiff_t)panel * m.inputs * PANEL + from) {}
  Plain(const T* weight, std::ptrdiff_t apart) : weight(weight), apart(apart) {}

  template <int N, typename Use>
  static inline __attribute__((always_inline)) void each(const Plain* w, int inputs, Use use) {
    for (int k = 0; k < inputs; k++) {
      Vec values[2 * N];
      for (int n = 0; n < N; n++) {
        const T* at = w[n].weight + k * w[n].apart;
        values[2 * n] = load(at);
        values[2 * n + 1] = load(at + LANES);
      }
      use(k, values);
    }
  }
};

template <int BITS, typename S>
struct Quantized {
  const int32_t* words;
  const S* scales;
  int group;

  Quantized(const Matrix& m, int panel, int from)
      : words(static_cast<const int32_t*>(m.weight) + (std::ptrdiff_t)panel * (m.inputs * BITS / 32) * PANEL + from),
        scales(static_cast<const S*>(m.scales) + (std::ptrdiff_t)panel * (m.inputs / m.group) * 2 * PANEL + from),
        group(m.group) {}

  template <int N, typename Use>
  static inline __attribute__((always_inline)) void each(const Quantized* w, int inputs, Use use) {
    constexpr int FIELDS = 32 / BITS;
    std::ptrdiff_t word = 0, scale = 0;
    for (int k = 0; k < inputs; scale += 2 * PANEL) {
      Vec scales[2 * N], biases[2 * N];
      for (int i = 0; i < 2 * N; i++) {
        const S* at = w[i / 2].scales + scale + i % 2 * LANES;
        scales[i] = load(at);
        biases[i] = load(at + PANEL);
      }
      for (int end = k + w[0].group; k < end; k += FIELDS, word += PANEL) {
        Ints words[2 * N];
        for (int i = 0; i < 2 * N; i++) words[i] = *reinterpret_cast<const Ints*>(w[i / 2].words + word + i % 2 * LANES);
#pragma GCC unroll 8
        for (int j = 0; j < FIELDS; j++) {
          Vec values[2 * N];
          for (int i = 0; i < 2 * N; i++) values[i] = level<BITS>(words[i], j) * scales[i] + biases[i];
          use(k + j, values);
        }
      }
    }
  }
};

// y[t * stride + n * PANEL + 0 .. PART) for T tokens x[t * apart ..) and N weights. Three tokens to a pointer: what the
// processor can address without a register for each.
template <int T, int N, typename W>
inline void tile(const W* weights, const float* x, std::ptrdiff_t apart, int inputs, float* y, std::ptrdiff_t stride) {
  constexpr int GROUP = 3;
  Vec sums[T][2 * N] = {};
  const float* group[(T + GROUP - 1) / GROUP];
  for (int t = 0; t < T; t += GROUP) group[t / GROUP] = x + t * apart;
  W::template each<N>(weights, inputs, [&](int k, const Vec* values) __attribute__((always_inline)) {
#pragma GCC unroll 12
    for (int t = 0; t < T; t++) {
      const Vec each = all(group[t / GROUP][t % GROUP * apart + k]);
#pragma GCC unroll 4
      for (int i = 0; i < 2 * N; i++) sums[t][i] += values[i] * each;
    }
  });
  for (int t = 0; t < T; t++)
    for (int i = 0; i < 2 * N; i++) store(y + t * stride + i / 2 * PANEL + i % 2 * LANES, sums[t][i]);
}

template <typename W>
inline void tiles(const W& weights, const float* x, std::ptrdiff_t apart, int inputs, int tokens, float* y,
                  std::ptrdiff_t stride) {
  int t = 0;
  for (; t + TILE <= tokens; t += TILE) tile<TILE, 1>(&weights, x + t * apart, apart, inputs, y + t * stride, stride);
  x += t * apart;
  y += t * stride;
  switch (tokens - t) {
#define STARLING_CASE(n) \
  case n: if constexpr (n < TILE) return tile<n, 1>(&weights, x, apart, inputs, y, stride); else return;
    STARLING_CASE(11) STARLING_CASE(10) STARLING_CASE(9) STARLING_CASE(8) STARLING_CASE(7) STARLING_CASE(6)
    STARLING_CASE(5) STARLING_CASE(4) STARLING_CASE(3) STARLING_CASE(2) STARLING_CASE(1)
#undef STARLING_CASE
  }
}

// Calls use(weights) with what reads PART outputs of a panel, from the given one on.
template <typename Use>
inline void reading(const Matrix& m, int panel, int from, Use use) {
  switch (m.kind) {
    case FLOAT32: return use(Plain<float>(m, panel, from));
    case FLOAT16: return use(Plain<uint16_t>(m, panel, from));
    case BFLOAT16: return use(Plain<Bfloat>(m, panel, from));
    case BITS4: return use(Quantized<4, uint16_t>(m, panel, from));
    case BITS8: return use(Quantized<8, uint16_t>(m, panel, from));
    case BITS4_WIDE: return use(Quantized<4, float>(m, panel, from));
    case BITS8_WIDE: return use(Quantized<8, float>(m, panel, from));
  }
}

// y (tokens, panels * PANEL) of x (tokens, inputs) and some panels from the given one on, each so far apart from one token
// to the next. unpacked: room for (inputs, PANEL).
inline void multiply(const Matrix& m, int panel, int panels, const float* x, std::ptrdiff_t x_apart, int tokens, float* y,
                     std::ptrdiff_t y_apart, float* unpacked) {
  const int end = panel + panels;
  for (int count; panel < end; panel += count, y += count * PANEL) {
    count = tokens <= PAIRED && panel + 1 < end ? 2 : 1;
    for (int from = 0; from < PANEL; from += PART)
      reading(m, panel, from, [&](auto weights) {
        using Weights = decltype(weights);
        if (count == 2) {
          const Weights pair[2] = {weights, Weights(m, panel + 1, from)};
          if (tokens == 1) return tile<1, 2>(pair, x, x_apart, m.inputs, y + from, y_apart);
          return tile<PAIRED, 2>(pair, x, x_apart, m.inputs, y + from, y_apart);
        }
        if (tokens < UNPACKED || m.kind == FLOAT32)
          return tiles(weights, x, x_apart, m.inputs, tokens, y + from, y_apart);
        Weights::template each<1>(&weights, m.inputs, [&](int k, const Vec* values) {
          store(unpacked + k * PANEL, values[0]);
          store(unpacked + k * PANEL + LANES, values[1]);
        });
        tiles(Plain<float>(unpacked, PANEL), x, x_apart, m.inputs, tokens, y + from, y_apart);
      });
    if (m.bias)
      for (int t = 0; t < tokens; t++)
        for (int o = 0; o < count * PANEL; o += LANES) {
          float* at = y + t * y_apart + o;
          store(at, load(at) + load(m.bias + panel * PANEL + o));
        }
  }
}

// One row of the weight, (inputs,): a token's vector.
inline void row(const Matrix& m, int output, float* y) {
  const int panel = output / PANEL, lane = output % LANES, half = output % PART / LANES;
  reading(m, panel, output % PANEL / PART * PART, [&](auto weights) {
    decltype(weights)::template each<1>(&weights, m.inputs, [&](int k, const Vec* values) { y[k] = values[half][lane]; });
  });
}

}  // namespace
