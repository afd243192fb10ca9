// Whisper's decoder over some tokens at a time, on threads of its own.
//
// Decoding a token reads every weight once and computes little with it, so time is what reading takes: weights stay
// as float16 where the model's file has them so, and become float32 in registers. Each output is one sum in an order
// that does not depend on how many tokens there are: a row's logits are the same alone and in company.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "../../cpu/threads.h"
#include "../../cpu/vectors.h"

namespace {

constexpr int BLOCK_TOKENS = LANES == 8 ? 2 : 4;  // as many as fit the registers: AVX has 16, the others 32
constexpr int BLOCK_OUTPUTS = 4;
constexpr int FRAMES = 16;  // cross keys lie in blocks of so many frames, the frames of one dimension side by side
constexpr int CHUNK = 32;   // outputs that a thread takes at once
constexpr int TABLE_CHUNK = 512;

extern "C" {
// All shapes as in the structures of decoder.py, which fills these.
struct Matrix {
  const void* weight;  // (outputs, inputs)
  const float* bias;   // (outputs,) or null
  int64_t halves;      // whether the weight is float16
};
struct Layer {
  Norm own_norm;
  Matrix query, key, value, out;
  Norm cross_norm;
  Matrix cross_query, cross_out;
  Norm up_norm;
  Matrix up, down;
};
struct Group {
  float* cache;  // (layers, 2, rows, heads, capacity, size): self keys and values
  int64_t rows, capacity, frames;
  const float* const* cross;  // for each layer keys (heads, frames / FRAMES, size, FRAMES), values (heads, frames, size)
};
struct Token {
  int32_t group, row, position;
};
}

struct Pass {
  int tokens;
  const Token* token;
  const Group* group;
  float* x;  // (tokens, width)
  int wanted;
  const int32_t* want;
  float* logits;  // (wanted, vocabulary)
  int chosen;
  const int32_t* choice;  // (chosen, 2): layer and head
  float* scores;          // (chosen, tokens, frames)
};

struct Model {
  int width, heads, hidden, vocabulary;
  std::vector<Layer> layers;
  Norm norm;
  Matrix table;
  int size() const { return width / heads; }
};

// y[t][o] for O outputs and T tokens.
template <int O, int T, typename W>
inline void tile(const W* weight, const float* x, int inputs, float y[O][T]) {
  Vec total[O][T] = {};
  for (int k = 0; k < inputs; k += LANES) {
    Vec w[O];
    for (int o = 0; o < O; o++) w[o] = load(weight + (std::ptrdiff_t)o * inputs + k);
    for (int t = 0; t < T; t++) {
      Vec each = load(x + (std::ptrdiff_t)t * inputs + k);
      for (int o = 0; o < O; o++) total[o][t] += w[o] * each;
    }
  }
  for (int o = 0; o < O; o++)
    for (int t = 0; t < T; t++) y[o][t] = sum(total[o][t]);
}

template <int O, int T, typename W, typename Put>
inline void tile_at(const W* weight, const float* bias, const float* x, int inputs, int output, int token, Put put) {
  float y[O][T];
  tile<O, T>(weight + (std::ptrdiff_t)output * inputs, x + (std::ptrdiff_t)token * inputs, inputs, y);
  for (int o = 0; o < O; o++)
    for (int t = 0; t < T; t++) put(token + t, output + o, y[o][t] + (bias ? bias[output + o] : 0.0f));
}

template <int O, typename W, typename Put>
inline void rows_at(const W* weight, const float* bias, const float* x, int inputs, int output, int tokens, Put put) {
  int token = 0;
  for (; token + BLOCK_TOKENS <= tokens; token += BLOCK_TOKENS)
    tile_at<O, BLOCK_TOKENS>(weight, bias, x, inputs, output, token, put);
  switch (tokens - token) {  // a weight is read once for all that are left
    case 3: return tile_at<O, 3>(weight, bias, x, inputs, output, token, put);
    case 2: return tile_at<O, 2>(weight, bias, x, inputs, output, token, put);
    case 1: return tile_at<O, 1>(weight, bias, x, inputs, output, token, put);
  }
}

// put(token, output, value) for outputs begin .. end of a matrix times x (tokens, inputs).
template <typename W, typename Put>
void multiply(const W* weight, const float* bias, const float* x, int inputs, int begin, int end, int tokens, Put put) {
  int output = begin;
  for (; output + BLOCK_OUTPUTS <= end; output += BLOCK_OUTPUTS)
    rows_at<BLOCK_OUTPUTS>(weight, bias, x, inputs, output, tokens, put);
  for (; output < end; output++) rows_at<1>(weight, bias, x, inputs, output, tokens, put);
}

template <typename Put>
void multiply(const Matrix& m, const float* x, int inputs, int begin, int end, int tokens, Put put) {
  if (m.halves)
    multiply(static_cast<const uint16_t*>(m.weight), m.bias, x, inputs, begin, end, tokens, put);
  else
    multiply(static_cast<const float*>(m.weight), m.bias, x, inputs, begin, end, tokens, put);
}

inline int padded(int64_t count) { return (int)((count + FRAMES - 1) / FRAMES * FRAMES); }

// Scores of T tokens' queries with all keys, which lie in blocks.
template <int T>
void score(const float* const* query, const float* keys, int size, int frames, float* const* scores) {
  for (int f = 0; f < frames; f += FRAMES) {
    Vec total[T][FRAMES / LANES] = {};
    const float* block = keys + (std::ptrdiff_t)f * size;
    for (int d = 0; d < size; d++)
      for (int v = 0; v < FRAMES / LANES; v++) {
        Vec k = load(block + d * FRAMES + v * LANES);
        for (int t = 0; t < T; t++) total[t][v] += k * query[t][d];
      }
    for (int t = 0; t < T; t++)
      for (int v = 0; v < FRAMES / LANES; v++) store(scores[t] + f + v * LANES, total[t][v]);
  }
}

// T tokens' weighted sums of values (frames, size), `D` vectors of each at a time.
template <int T, int D>
void mix_part(const float* const* weights, const float* values, int size, int from, int frames, float* const* out) {
  Vec total[T][D] = {};
  for (int f = 0; f < frames; f++) {
    const float* value = values + (std::ptrdiff_t)f * size + from;
    for (int d = 0; d < D; d++) {
      Vec v = load(value + d * LANES);
      for (int t = 0; t < T; t++) total[t][d] += v * weights[t][f];
    }
  }
  for (int t = 0; t < T; t++)
    for (int d = 0; d < D; d++) store(out[t] + from + d * LANES, total[t][d]);
}

template <int T>
void mix(const float* const* weights, const float* values, int size, int frames, float* const* out) {
  constexpr int D = 4;
  int from = 0;
  for (; from + D * LANES <= size; from += D * LANES) mix_part<T, D>(weights, values, size, from, frames, out);
  for (; from < size; from += LANES) mix_part<T, 1>(weights, values, size, from, frames, out);
}

class Engine {
 public:
  Engine(Model model, int threads) : model_(std::move(model)), crew_(threads), scratch_(threads) {}

  void run(const Pass& pass) {
    const int tokens = pass.tokens, width = model_.width;
    attended_.resize((std::size_t)tokens * width);
    hidden_.resize((std::size_t)tokens * model_.hidden);
    pass_ = &pass;
    crew_.run(6 * (int)model_.layers.size() + 1, [this](int index) { compute(index); });
  }

 private:
  struct Scratch {
    std::vector<float> normed, query, scores, weights;
  };

  const float* normed(const Norm& norm, Scratch& own) {
    const int tokens = pass_->tokens, width = model_.width;
    own.normed.resize((std::size_t)tokens * width);
    for (int t = 0; t < tokens; t++)
      normalise(norm, pass_->x + (std::ptrdiff_t)t * width, own.normed.data() + (std::ptrdiff_t)t * width, width);
    return own.normed.data();
  }

  // x += matrix * y, in chunks of outputs.
  void add(int& phase, const Matrix& matrix, const float* y, int inputs) {
    const int width = model_.width;
    crew_.share(phase, (width + CHUNK - 1) / CHUNK, [&](int chunk) {
      multiply(matrix, y, inputs, chunk * CHUNK, std::min((chunk + 1) * CHUNK, width), pass_->tokens,
               [&](int t, int o, float value) { pass_->x[(std::ptrdiff_t)t * width + o] += value; });
    });
  }

  void compute(int index) {
    Scratch& own = scratch_[index];
    const Pass& pass = *pass_;
    int phase = 0;
    for (int at = 0; at < (int)model_.layers.size(); at++) {
      const Layer& layer = model_.layers[at];
      after(phase, model_.heads, layer.own_norm, own, [&](int head, const float* y) { attend_self(layer, at, head, y, own); });
      add(phase, layer.out, attended_.data(), model_.width);
      after(phase, model_.heads, layer.cross_norm, own, [&](int head, const float* y) { attend_cross(layer, at, head, y, own); });
      add(phase, layer.cross_out, attended_.data(), model_.width);
      after(phase, (model_.hidden + CHUNK - 1) / CHUNK, layer.up_norm, own,
            [&](int chunk, const float* y) { widen(layer.up, chunk, y); });
      add(phase, layer.down, hidden_.data(), model_.hidden);
    }
    const int width = model_.width, vocabulary = model_.vocabulary;
    bool ready = false;
    crew_.share(phase, (vocabulary + TABLE_CHUNK - 1) / TABLE_CHUNK, [&](int chunk) {
      if (!std::exchange(ready, true)) last(own);
      multiply(model_.table, own.normed.data(), width, chunk * TABLE_CHUNK,
               std::min((chunk + 1) * TABLE_CHUNK, vocabulary), pass.wanted,
               [&](int t, int o, float value) { pass.logits[(std::ptrdiff_t)t * vocabulary + o] = value; });
    });
  }

  // work(part, x after a norm), which each thread computes for itself. It does so with its first part in hand: before
  // it had one, the others might be done with all of them, and be writing to x.
  template <typename Work>
  void after(int& phase, int parts, const Norm& norm, Scratch& own, Work work) {
    const float* y = nullptr;
    crew_.share(phase, parts, [&](int part) {
      if (!y) y = normed(norm, own);
      work(part, y);
    });
  }

  // The last norm, of the tokens whose logits are wanted.
  void last(Scratch& own) {
    const int width = model_.width;
    own.normed.resize((std::size_t)pass_->wanted * width);
    for (int i = 0; i < pass_->wanted; i++)
      normalise(model_.norm, pass_->x + (std::ptrdiff_t)pass_->want[i] * width,
                own.normed.data() + (std::ptrdiff_t)i * width, width);
  }

  void widen(const Matrix& up, int chunk, const float* y) {
    const int hidden = model_.hidden, begin = chunk * CHUNK, end = std::min(begin + CHUNK, hidden);
    multiply(up, y, model_.width, begin, end, pass_->tokens,
             [&](int t, int o, float value) { hidden_[(std::size_t)t * hidden + o] = value; });
    for (int t = 0; t < pass_->tokens; t++)
      for (int o = begin; o < end; o += LANES) {
        float* at = hidden_.data() + (std::size_t)t * hidden + o;
        store(at, gelu(load(at)));
      }
  }

  // One head's part of a projection, (tokens, size).
  template <typename Put>
  void project(const Matrix& matrix, int head, const float* y, Put put) {
    const int size = model_.size(), begin = head * size;
    multiply(matrix, y, model_.width, begin, begin + size, pass_->tokens,
             [&](int t, int o, float value) { put(t, o - begin, value); });
  }

  float* cached(const Token& token, int layer, int which, int head, int position) const {
    const Group& group = pass_->group[token.group];
    std::ptrdiff_t place = ((std::ptrdiff_t)layer * 2 + which) * group.rows + token.row;
    place = (place * model_.heads + head) * group.capacity + position;
    return group.cache + place * model_.size();
  }

  void queries(const Matrix& matrix, int head, const float* y, Scratch& own) {
    const int size = model_.size();
    const float scale = 1.0f / std::sqrt((float)size);
    own.query.resize((std::size_t)pass_->tokens * size);
    project(matrix, head, y, [&](int t, int d, float value) { own.query[(std::size_t)t * size + d] = value * scale; });
  }

  void attend_self(const Layer& layer, int at, int head, const float* y, Scratch& own) {
    const int size = model_.size();
    queries(layer.query, head, y, own);
    int which = 0;
    for (const Matrix* matrix : {&layer.key, &layer.value}) {
      project(*matrix, head, y, [&](int t, int d, float value) {
        const Token& token = pass_->token[t];
        cached(token, at, which, head, token.position)[d] = value;
      });
      which++;
    }
    for (int t = 0; t < pass_->tokens; t++) {
      const Token& token = pass_->token[t];
      const int seen = token.position + 1, count = padded(seen);
      own.scores.resize(std::max(own.scores.size(), (std::size_t)count));
      float* scores = own.scores.data();
      const float *query = own.query.data() + (std::ptrdiff_t)t * size, *keys = cached(token, at, 0, head, 0);
      for (int p = 0; p < seen; p++) {
        Vec total = {};
        for (int d = 0; d < size; d += LANES) total += load(query + d) * load(keys + (std::ptrdiff_t)p * size + d);
        scores[p] = sum(total);
      }
      for (int p = seen; p < count; p++) scores[p] = -std::numeric_limits<float>::infinity();
      put_mixed(t, head, scores, count, seen, cached(token, at, 1, head, 0));
    }
  }

  void put_mixed(int t, int head, float* scores, int count, int seen, const float* values) {
    const int size = model_.size();
    const float total = soften(scores, count);
    float* out = attended_.data() + (std::ptrdiff_t)t * model_.width + head * size;
    const float* const weights[1] = {scores};
    float* const outs[1] = {out};
    mix<1>(weights, values, size, seen, outs);
    for (int d = 0; d < size; d++) out[d] /= total;
  }

  void attend_cross(const Layer& layer, int at, int head, const float* y, Scratch& own) {
    queries(layer.cross_query, head, y, own);
    for (int t = 0; t < pass_->tokens;) {  // tokens of one group lie side by side
      int end = t + 1;
      while (end < pass_->tokens && end < t + 4 && pass_->token[end].group == pass_->token[t].group) end++;
      switch (end - t) {
        case 4: attend_block<4>(at, head, t, own); break;
        case 3: attend_block<3>(at, head, t, own); break;
        case 2: attend_block<2>(at, head, t, own); break;
        default: attend_block<1>(at, head, t, own);
      }
      t = end;
    }
  }

  template <int T>
  void attend_block(int at, int head, int first, Scratch& own) {
    const Group& group = pass_->group[pass_->token[first].group];
    const int size = model_.size(), frames = (int)group.frames, count = padded(frames);
    const float* keys = group.cross[2 * at] + (std::ptrdiff_t)head * count * size;
    const float* values = group.cross[2 * at + 1] + (std::ptrdiff_t)head * frames * size;
    own.scores.resize(std::max(own.scores.size(), (std::size_t)T * count));
    const float* query[T];
    float *scores[T], *out[T];
    for (int t = 0; t < T; t++) {
      query[t] = own.query.data() + (std::ptrdiff_t)(first + t) * size;
      scores[t] = own.scores.data() + (std::ptrdiff_t)t * count;
      out[t] = attended_.data() + (std::ptrdiff_t)(first + t) * model_.width + head * size;
    }
    score<T>(query, keys, size, count, scores);
    for (int c = 0; c < pass_->chosen; c++)
      if (pass_->choice[2 * c] == at && pass_->choice[2 * c + 1] == head)
        for (int t = 0; t < T; t++)
          std::memcpy(pass_->scores + ((std::ptrdiff_t)c * pass_->tokens + first + t) * frames, scores[t],
                      frames * sizeof(float));
    float total[T];
    for (int t = 0; t < T; t++) {
      for (int f = frames; f < count; f++) scores[t][f] = -std::numeric_limits<float>::infinity();
      total[t] = soften(scores[t], count);
    }
    mix<T>(scores, values, size, frames, out);
    for (int t = 0; t < T; t++)
      for (int d = 0; d < size; d++) out[t][d] /= total[t];
  }

  Model model_;
  Crew crew_;
  std::vector<Scratch> scratch_;
  std::vector<float> attended_, hidden_;
  const Pass* pass_ = nullptr;
};

}  // namespace

extern "C" {

// Whether weights may be float16.
int starling_halves() { return HALVES; }

// The layers are copied, the weights are not. Null: no threads could be had.
void* starling_decoder(int width, int heads, int hidden, int vocabulary, int layers, const Layer* layer, Norm norm,
                       Matrix table, int threads) try {
  return new Engine(Model{width, heads, hidden, vocabulary, {layer, layer + layers}, norm, table}, threads);
} catch (...) {
  return nullptr;
}

void starling_decoder_end(void* engine) { delete static_cast<Engine*>(engine); }

// One pass; x (tokens, width) holds the embedded tokens and is used up. 0: there was not enough memory.
int starling_decoder_run(void* engine, int tokens, const Token* token, const Group* group, float* x, int wanted,
                         const int32_t* want, float* logits, int chosen, const int32_t* choice, float* scores) try {
  static_cast<Engine*>(engine)->run({tokens, token, group, x, wanted, want, logits, chosen, choice, scores});
  return 1;
} catch (...) {
  return 0;
}
}
