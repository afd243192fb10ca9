// A Llama-like network over some tokens of some rows at a time, on threads of its own.
//
// One call goes through all layers. Weights become float32 in registers, and a matrix is read once for all tokens. A
// token's numbers do not depend on which others are computed beside it, but for how its row's span is cut: attention of
// many positions sums up in another order than that of few.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "../../cpu/threads.h"
#include "../../cpu/panels.h"

namespace {

constexpr int FEW = 32;              // tokens of a row up to which each attends by itself
constexpr int BLOCK = 16 * TILE;     // tokens that a thread takes at once
constexpr int TABLE_PANELS = 8;      // panels of logits that a thread takes at once
constexpr float NONE = -std::numeric_limits<float>::infinity();

extern "C" {
// All as in network.py, which fills these.
struct Layer {
  const float *norm, *mlp_norm;         // (width,)
  const float *query_norm, *key_norm;   // (size,) or null
  Matrix qkv;                           // queries' heads, keys', values'
  Matrix out, gate_up, down;            // gate_up: a panel of gates, then the same of what they gate
};
struct Shape {
  int32_t width, heads, key_heads, size, hidden, layers;
  float eps;
};
struct Cache {  // of one layer: (rows, key heads, columns, size), and how far apart these lie
  float *keys, *values;
  int64_t key_row, key_head, key_column, value_row, value_head, value_column;
};
struct Token {
  int32_t row, position, first, column;  // it sees the columns from `first` to its own
  int32_t adapter;                       // -1: none
};
struct Pair {  // an adapter's matrices for one linear layer: (inputs, rank) and (rank, outputs); rank 0: none
  const float *a, *b;
  int64_t rank;
};
struct Adapter {
  const Pair* pairs;  // (layers, SITES)
};
}

enum Site { QUERY, KEY, VALUE, OUT, GATE, UP, DOWN, SITES };

struct Pass {
  int rows, length, columns;      // tokens lie row by row
  const Token* token;             // (rows * length,)
  float* x;                       // (rows * length, width)
  const Cache* cache;             // (layers,)
  const float *cosine, *sine;     // (positions, size / 2)
  const uint8_t* mask;            // (rows, length, columns): what may be seen; or null
  const Adapter* adapter;
  int adapters;
  int tokens() const { return rows * length; }
};

inline int rounded(int count, int to) { return (count + to - 1) / to * to; }

inline void rms(const float* x, const float* weight, float eps, float* y, int width) {
  Vec squares = {};
  for (int i = 0; i < width; i += LANES) squares += load(x + i) * load(x + i);
  const float scale = 1.0f / std::sqrt(sum(squares) / width + eps);
  for (int i = 0; i < width; i += LANES) store(y + i, load(x + i) * scale * load(weight + i));
}

// silu(gate) * up.
inline Vec gated(Vec gate, Vec up) {
  const Vec e = exponential(gate < 0.0f ? gate : -gate);
  return gate * (gate < 0.0f ? e : all(1.0f)) / (1.0f + e) * up;
}

class Engine {
 public:
  Engine(const Shape& shape, const Layer* layers, const float* norm, int threads)
      : shape_(shape), layers_(layers, layers + shape.layers), norm_(norm), crew_(threads), scratch_(threads) {
    int most = std::max({shape.width, shape.heads * shape.size, shape.hidden});
    for (Scratch& own : scratch_) own.unpacked.resize((std::size_t)most * PANEL);
  }

  void run(const Pass& pass) {
    const std::size_t tokens = pass.tokens();
    const int ranks = rank(pass);
    normed_.resize(tokens * shape_.width);
    queries_.resize(tokens * shape_.heads * shape_.size);
    attended_.resize(queries_.size());
    hidden_.resize(tokens * shape_.hidden);
    low_.resize(tokens * SITES * ranks);
    if (pass.length > FEW) packed_.resize((std::size_t)pass.rows * shape_.key_heads * rounded(pass.columns, PANEL) * shape_.size);
    pass_ = &pass;
    ranks_ = ranks;
    crew_.run(13 * shape_.layers + 1, [this](int index) { compute(scratch_[index]); });
  }

  // y (tokens, m.outputs) of x (tokens, m.inputs).
  void logits(const Matrix& m, int tokens, const float* x, float* y) {
    const int panels = rounded(m.outputs, PANEL) / PANEL;
    for (Scratch& own : scratch_) {
      own.unpacked.resize(std::max(own.unpacked.size(), (std::size_t)m.inputs * PANEL));
      own.y.resize(std::max(own.y.size(), (std::size_t)tokens * PANEL));
    }
    crew_.run(1, [&](int index) {
      Scratch& own = scratch_[index];
      int phase = 0;
      crew_.share(phase, (panels + TABLE_PANELS - 1) / TABLE_PANELS, [&](int part) {
        const int end = std::min((part + 1) * TABLE_PANELS, panels);
        for (int panel = part * TABLE_PANELS; panel < end; panel++) {
          multiply(m, panel, 1, x, m.inputs, tokens, own.y.data(), PANEL, own.unpacked.data());
          const int count = std::min(PANEL, m.outputs - panel * PANEL);
          for (int t = 0; t < tokens; t++)
            std::memcpy(y + (std::ptrdiff_t)t * m.outputs + panel * PANEL, own.y.data() + t * PANEL, count * sizeof(float));
        }
      });
    });
  }

 private:
  struct Scratch {
    std::vector<float> unpacked, y, scores;
  };

  // The pass, phase by phase

  void compute(Scratch& own) {
    int phase = 0;
    for (int at = 0; at < shape_.layers; at++) {
      const Layer& layer = layers_[at];
      normalise(phase, layer.norm);
      lower(phase, at, {QUERY, KEY, VALUE}, normed_.data(), shape_.width);
      blocks(phase, shape_.heads + 2 * shape_.key_heads, [&](int head, int t, int count) { project(at, head, t, count, own); });
      if (pass_->length > FEW) {
        pack(phase, pass_->cache[at]);
        attend_many(phase, pass_->cache[at], own);
      } else {
        attend_few(phase, pass_->cache[at], own);
      }
      lower(phase, at, {OUT}, attended_.data(), shape_.heads * shape_.size);
      add(phase, at, layer.out, OUT, attended_.data(), own);
      normalise(phase, layer.mlp_norm);
      lower(phase, at, {GATE, UP}, normed_.data(), shape_.width);
      blocks(phase, shape_.hidden / PANEL, [&](int panel, int t, int count) { widen(at, panel, t, count, own); });
      lower(phase, at, {DOWN}, hidden_.data(), shape_.hidden);
      add(phase, at, layer.down, DOWN, hidden_.data(), own);
    }
    const int width = shape_.width;
    crew_.share(phase, pass_->tokens(), [&](int t) {
      float* x = pass_->x + (std::ptrdiff_t)t * width;
      rms(x, norm_, shape_.eps, x, width);
    });
  }

  // work(part, first token, tokens) for every part and block of tokens.
  template <typename Work>
  void blocks(int& phase, int parts, Work work) {
    const int tokens = pass_->tokens(), count = (tokens + BLOCK - 1) / BLOCK;
    crew_.share(phase, parts * count, [&](int index) {
      const int t = index % count * BLOCK;
      work(index / count, t, std::min(BLOCK, tokens - t));
    });
  }

  void normalise(int& phase, const float* weight) {
    const int width = shape_.width;
    crew_.share(phase, pass_->tokens(), [&](int t) {
      rms(pass_->x + (std::ptrdiff_t)t * width, weight, shape_.eps, normed_.data() + (std::ptrdiff_t)t * width, width);
    });
  }

  // One head of queries, keys or values.
  void project(int at, int head, int t, int count, Scratch& own) {
    const Layer& layer = layers_[at];
    const int size = shape_.size, heads = shape_.heads, keys = shape_.key_heads;
    const Site site = head < heads ? QUERY : head < heads + keys ? KEY : VALUE;
    const int place = site == QUERY ? head : site == KEY ? head - heads : head - heads - keys;
    own.y.resize(std::max(own.y.size(), (std::size_t)BLOCK * size));
    multiply(layer.qkv, head * size / PANEL, size / PANEL, normed_.data() + (std::ptrdiff_t)t * shape_.width, shape_.width,
             count, own.y.data(), size, own.unpacked.data());
    for (int i = 0; i < count; i++) {
      float* y = own.y.data() + (std::ptrdiff_t)i * size;
      const Token& token = pass_->token[t + i];
      raise(at, site, t + i, place * size, size, y);
      const float* norm = site == QUERY ? layer.query_norm : site == KEY ? layer.key_norm : nullptr;
      if (norm) rms(y, norm, shape_.eps, y, size);
      if (site != VALUE) turn(y, token.position, site == QUERY ? 1.0f / std::sqrt((float)size) : 1.0f);
      float* to = site == QUERY ? query(t + i, place) : site == KEY ? key(pass_->cache[at], token.row, place, token.column)
                                                                     : value(pass_->cache[at], token.row, place, token.column);
      std::memcpy(to, y, size * sizeof(float));
    }
  }

  void turn(float* y, int position, float scale) const {
    const int half = shape_.size / 2;
    const float* cosine = pass_->cosine + (std::ptrdiff_t)position * half;
    const float* sine = pass_->sine + (std::ptrdiff_t)position * half;
    for (int d = 0; d < half; d += LANES) {
      const Vec a = load(y + d) * scale, b = load(y + half + d) * scale, c = load(cosine + d), s = load(sine + d);
      store(y + d, a * c - b * s);
      store(y + half + d, a * s + b * c);
    }
  }

  // x += a matrix times y, some panels at a time.
  void add(int& phase, int at, const Matrix& matrix, Site site, const float* y, Scratch& own) {
    const int panels = shape_.width / PANEL, step = pass_->tokens() <= PAIRED ? 2 : 1;
    blocks(phase, (panels + step - 1) / step, [&](int part, int t, int count) {
      const int from = part * step * PANEL, width = std::min(step * PANEL, shape_.width - from);
      own.y.resize(std::max(own.y.size(), (std::size_t)BLOCK * step * PANEL));
      multiply(matrix, from / PANEL, width / PANEL, y + (std::ptrdiff_t)t * matrix.inputs, matrix.inputs, count, own.y.data(),
               width, own.unpacked.data());
      for (int i = 0; i < count; i++) {
        float* more = own.y.data() + i * width;
        raise(at, site, t + i, from, width, more);
        float* to = pass_->x + (std::ptrdiff_t)(t + i) * shape_.width + from;
        for (int o = 0; o < width; o += LANES) store(to + o, load(to + o) + load(more + o));
      }
    });
  }

  void widen(int at, int panel, int t, int count, Scratch& own) {
    const Matrix& matrix = layers_[at].gate_up;
    own.y.resize(std::max(own.y.size(), (std::size_t)2 * BLOCK * PANEL));
    multiply(matrix, 2 * panel, 2, normed_.data() + (std::ptrdiff_t)t * shape_.width, shape_.width, count, own.y.data(),
             2 * PANEL, own.unpacked.data());
    for (int i = 0; i < count; i++) {
      float *gate = own.y.data() + i * 2 * PANEL, *up = gate + PANEL;
      raise(at, GATE, t + i, panel * PANEL, PANEL, gate);
      raise(at, UP, t + i, panel * PANEL, PANEL, up);
      float* to = hidden_.data() + (std::ptrdiff_t)(t + i) * shape_.hidden + panel * PANEL;
      for (int o = 0; o < PANEL; o += LANES) store(to + o, gated(load(gate + o), load(up + o)));
    }
  }

  // Attention

  float* query(int t, int head) { return queries_.data() + ((std::ptrdiff_t)t * shape_.heads + head) * shape_.size; }
  float* attended(int t, int head) { return attended_.data() + ((std::ptrdiff_t)t * shape_.heads + head) * shape_.size; }
  static float* key(const Cache& cache, int row, int head, int column) {
    return cache.keys + row * cache.key_row + head * cache.key_head + column * cache.key_column;
  }
  static float* value(const Cache& cache, int row, int head, int column) {
    return cache.values + row * cache.value_row + head * cache.value_head + column * cache.value_column;
  }
  const uint8_t* seen(int t) const { return pass_->mask ? pass_->mask + (std::ptrdiff_t)t * pass_->columns : nullptr; }

  void attend_few(int& phase, const Cache& cache, Scratch& own) {
    crew_.share(phase, pass_->tokens() * shape_.heads, [&](int index) {
      const int t = index / shape_.heads, head = index % shape_.heads, group = head * shape_.key_heads / shape_.heads;
      const Token& token = pass_->token[t];
      const int size = shape_.size, count = token.column + 1 - token.first, room = rounded(count, LANES);
      if (count <= 0) return (void)std::fill_n(attended(t, head), size, 0.0f);  // padding, which sees nothing
      const uint8_t* mask = seen(t);
      const float *q = query(t, head), *keys = key(cache, token.row, group, token.first);
      own.scores.resize(std::max(own.scores.size(), (std::size_t)room));
      float* scores = own.scores.data();
      for (int p = 0; p < count; p++) {
        Vec total = {};
        for (int d = 0; d < size; d += LANES) total += load(q + d) * load(keys + p * cache.key_column + d);
        scores[p] = mask && !mask[token.first + p] ? NONE : sum(total);
      }
      for (int p = count; p < room; p++) scores[p] = NONE;
      mix(scores, count, soften(scores, room), value(cache, token.row, group, token.first), cache.value_column, attended(t, head));
    });
  }

  void mix(const float* weights, int count, float total, const float* values, std::ptrdiff_t apart, float* out) const {
    constexpr int AT_ONCE = 4;
    for (int from = 0; from < shape_.size; from += AT_ONCE * LANES) {
      const int vectors = std::min(AT_ONCE, (shape_.size - from) / LANES);
      Vec sums[AT_ONCE] = {};
      for (int p = 0; p < count; p++)
        for (int v = 0; v < vectors; v++) sums[v] += load(values + p * apart + from + v * LANES) * weights[p];
      for (int v = 0; v < vectors; v++) store(out + from + v * LANES, sums[v] / total);
    }
  }

  // Keys as panels of a matrix: (rows, key heads, columns / PANEL, size, PANEL).
  float* panels(int row, int head) {
    return packed_.data() + ((std::ptrdiff_t)row * shape_.key_heads + head) * rounded(pass_->columns, PANEL) * shape_.size;
  }

  void pack(int& phase, const Cache& cache) {
    const int count = rounded(pass_->columns, PANEL) / PANEL, size = shape_.size;
    crew_.share(phase, pass_->rows * shape_.key_heads * count, [&](int index) {
      const int block = index % count, head = index / count % shape_.key_heads, row = index / count / shape_.key_heads;
      float* to = panels(row, head) + (std::ptrdiff_t)block * PANEL * size;
      for (int p = 0; p < PANEL; p++) {
        const int column = block * PANEL + p;
        const float* from = column < pass_->columns ? key(cache, row, head, column) : nullptr;
        for (int d = 0; d < size; d++) to[d * PANEL + p] = from ? from[d] : 0.0f;
      }
    });
  }

  // Later positions see more: they come first, so that no thread is left with a long one.
  void attend_many(int& phase, const Cache& cache, Scratch& own) {
    const int parts = (pass_->length + TILE - 1) / TILE;
    crew_.share(phase, pass_->rows * shape_.heads * parts, [&](int index) {
      const int part = parts - 1 - index / (pass_->rows * shape_.heads), rest = index % (pass_->rows * shape_.heads);
      const int first = part * TILE, count = std::min(TILE, pass_->length - first);
      attend_block(cache, rest / shape_.heads, rest % shape_.heads, first, count, own);
    });
  }

  void attend_block(const Cache& cache, int row, int head, int first, int count, Scratch& own) {
    const int size = shape_.size, group = head * shape_.key_heads / shape_.heads, t = row * pass_->length + first;
    const int end = pass_->token[t + count - 1].column + 1, room = rounded(end, PANEL);
    own.scores.resize(std::max(own.scores.size(), (std::size_t)TILE * room));
    float* scores = own.scores.data();
    for (int p = 0; p < room; p += PANEL)
      for (int from = 0; from < PANEL; from += PART) {
        const float* keys = panels(row, group) + (std::ptrdiff_t)p * size + from;
        tiles(Plain<float>(keys, PANEL), query(t, head), shape_.heads * size, size, count, scores + p + from, room);
      }
    float totals[TILE];
    for (int i = 0; i < count; i++) {
      const Token& token = pass_->token[t + i];
      float* own_scores = scores + (std::ptrdiff_t)i * room;
      std::fill(own_scores, own_scores + std::min(token.first, room), NONE);
      std::fill(own_scores + token.column + 1, own_scores + room, NONE);
      if (const uint8_t* mask = seen(t + i))
        for (int p = token.first; p <= token.column; p++)
          if (!mask[p]) own_scores[p] = NONE;
      totals[i] = token.first > token.column ? NAN : soften(own_scores, room);
    }
    for (int from = 0; from < size; from += PART) {
      const Plain<float> values(value(cache, row, group, 0) + from, cache.value_column);
      tiles(values, scores, room, end, count, attended(t, head) + from, (std::ptrdiff_t)shape_.heads * size);
    }
    for (int i = 0; i < count; i++)
      for (int d = 0; d < size; d += LANES) {
        float* at = attended(t + i, head) + d;
        store(at, std::isnan(totals[i]) ? Vec{} : load(at) / totals[i]);
      }
  }

  // Adapters: x a b is added to what a linear layer gives, token by token

  const Pair* pair(int at, Site site, int t) const {
    const int adapter = pass_->token[t].adapter;
    if (adapter < 0) return nullptr;
    const Pair* found = pass_->adapter[adapter].pairs + at * SITES + site;
    return found->rank ? found : nullptr;
  }

  int rank(const Pass& pass) const {
    int64_t most = 0;
    for (int i = 0; i < pass.adapters; i++)
      for (int at = 0; at < shape_.layers * SITES; at++) most = std::max(most, pass.adapter[i].pairs[at].rank);
    return (int)most;
  }

  float* low(int t, Site site) { return low_.data() + ((std::ptrdiff_t)t * SITES + site) * ranks_; }

  // x a of each token, where it has any.
  void lower(int& phase, int at, std::initializer_list<Site> sites, const float* x, int inputs) {
    if (!pass_->adapters) return;
    crew_.share(phase, pass_->tokens(), [&](int t) {
      for (Site site : sites)
        if (const Pair* found = pair(at, site, t)) {
          float* to = low(t, site);
          std::fill(to, to + found->rank, 0.0f);
          for (int k = 0; k < inputs; k++) {
            const float each = x[(std::ptrdiff_t)t * inputs + k], *a = found->a + k * found->rank;
            for (int r = 0; r < found->rank; r++) to[r] += each * a[r];
          }
        }
    });
  }

  // y (count,) += low b, for the outputs from the given one on.
  void raise(int at, Site site, int t, int from, int count, float* y) {
    if (!pass_->adapters) return;
    if (const Pair* found = pair(at, site, t)) {
      const int outputs = this->outputs(site);
      for (int r = 0; r < found->rank; r++) {
        const float each = low(t, site)[r], *b = found->b + (std::ptrdiff_t)r * outputs + from;
        for (int o = 0; o < count; o++) y[o] += each * b[o];
      }
    }
  }

  int outputs(Site site) const {
    switch (site) {
      case QUERY: return shape_.heads * shape_.size;
      case KEY: case VALUE: return shape_.key_heads * shape_.size;
      case GATE: case UP: return shape_.hidden;
      default: return shape_.width;
    }
  }

  Shape shape_;
  std::vector<Layer> layers_;
  const float* norm_;
  Crew crew_;
  std::vector<Scratch> scratch_;
  std::vector<float> normed_, queries_, attended_, hidden_, packed_, low_;
  const Pass* pass_ = nullptr;
  int ranks_ = 0;
};

}  // namespace

extern "C" {

// A head's size and all widths must be multiples of this.
int starling_panel() { return PANEL; }
int starling_halves() { return HALVES; }

// The layers are copied, the weights are not. Null: no threads could be had.
void* starling_network(Shape shape, const Layer* layers, const float* norm, int threads) try {
  return new Engine(shape, layers, norm, threads);
} catch (...) {
  return nullptr;
}

void starling_network_end(void* engine) { delete static_cast<Engine*>(engine); }

// One pass; x holds the tokens' vectors and gets what the last norm gives. 0: there was not enough memory.
int starling_network_run(void* engine, int rows, int length, int columns, const Token* token, float* x,
                         const Cache* cache, const float* cosine, const float* sine, const uint8_t* mask,
                         const Adapter* adapter, int adapters) try {
  static_cast<Engine*>(engine)->run({rows, length, columns, token, x, cache, cosine, sine, mask, adapter, adapters});
  return 1;
} catch (...) {
  return 0;
}

// y (tokens, outputs) of x (tokens, inputs). 0: there was not enough memory.
int starling_network_logits(void* engine, const Matrix* matrix, int tokens, const float* x, float* y) try {
  static_cast<Engine*>(engine)->logits(*matrix, tokens, x, y);
  return 1;
} catch (...) {
  return 0;
}

// The rows (count, inputs) of a matrix.
void starling_rows(const Matrix* matrix, int count, const int32_t* outputs, float* y) {
  for (int i = 0; i < count; i++) row(*matrix, outputs[i], y + (std::ptrdiff_t)i * matrix->inputs);
}
}
