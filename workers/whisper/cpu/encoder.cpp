// Whisper's encoder over one window, on threads of its own.
//
// Threads take blocks of frames through a whole layer, so that what lies between two products is still in the cache
// of the core that needs it; they meet once a layer, where every block's keys and values are there.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "../../cpu/panels.h"
#include "../../cpu/threads.h"

namespace {

constexpr int QUERIES = 8 * TILE;    // whose scores with all keys are computed together: one head's fit the cache
constexpr int BLOCKS_OF_THREAD = 2;  // fewer and larger blocks: a weight is read for each anew

extern "C" {
// All shapes as in the structures of encoder.py, which fills these.
struct Layer {
  Norm own_norm;
  Matrix projection, out;  // queries, keys and values in one
  Norm up_norm;
  Matrix up, down;
};
struct Shape {
  int32_t mels, width, heads, hidden, layers;
};
}

// What a layer's frames offer to all others, head by head.
struct Offered {
  std::vector<float> queries;  // (frames, width), scaled
  std::vector<float> keys;     // (heads, frames / PANEL, size, PANEL)
  std::vector<float> values;   // (heads, frames, size)
};

class Encoder {
 public:
  Encoder(Shape shape, Matrix first, Matrix second, const float* positions, const Layer* layers, Norm norm, int threads)
      : shape_(shape),
        first_(first),
        second_(second),
        positions_(positions),
        layers_(layers, layers + shape.layers),
        norm_(norm),
        crew_(threads),
        scratch_(threads) {
    const int most = std::max({first.inputs, second.inputs, shape.width, shape.hidden});
    for (auto& own : scratch_) own.unpacked.resize((std::size_t)most * PANEL);
  }

  // mel (2 frames + 2, mels), its first and last row zeros, to x (frames, width).
  void run(const float* mel, int frames, float* x) {
    const std::size_t width = shape_.width;
    const int blocks = std::min(frames, BLOCKS_OF_THREAD * crew_.size());
    block_ = (frames + blocks - 1) / blocks;
    frames_ = frames;
    x_ = x;
    convolved_.assign((2 * (std::size_t)frames + 1) * width, 0.0f);  // a row of zeros comes first
    for (auto& offered : offered_) {
      offered.queries.resize(frames * width);
      offered.keys.assign(padded() * width, 0.0f);
      offered.values.resize(frames * width);
    }
    for (auto& own : scratch_) {
      own.scores.resize((std::size_t)QUERIES * padded());
      own.normed.resize(block_ * width);
      own.attended.resize(block_ * width);
      own.hidden.resize((std::size_t)block_ * shape_.hidden);
      own.y.resize((std::size_t)2 * block_ * PANEL);
    }
    crew_.run(shape_.layers + 2, [&](int index) { compute(mel, blocks, scratch_[index]); });
    for (auto& offered : offered_) offered = {};  // tens of MB that nobody needs while tokens are decoded
    convolved_ = {};
  }

 private:
  struct Scratch {
    std::vector<float> unpacked, scores, normed, attended, hidden, y;
  };

  int size() const { return shape_.width / shape_.heads; }
  std::size_t padded() const { return (frames_ + PANEL - 1) / PANEL * PANEL; }

  void compute(const float* mel, int blocks, Scratch& own) {
    int phase = 0;
    crew_.share(phase, blocks, [&](int block) { widen(mel, block, own); });
    crew_.share(phase, blocks, [&](int block) {
      halve(block, own);
      project(0, block, own);
    });
    for (int at = 0; at < shape_.layers; at++)
      crew_.share(phase, blocks, [&](int block) {
        attend(at, block, own);
        feed(at, block, own);
        if (at + 1 < shape_.layers)
          project(at + 1, block, own);
        else
          for (int t = begin(block); t < end(block); t++) normalise(norm_, row(t), row(t), shape_.width);
      });
  }

  int begin(int block) const { return std::min(block * block_, frames_); }
  int end(int block) const { return std::min((block + 1) * block_, frames_); }
  float* row(int t) const { return x_ + (std::ptrdiff_t)t * shape_.width; }

  // put(row, first output, values) for PANEL outputs of a matrix times each row of x at a time.
  template <typename Put>
  void multiply(const Matrix& matrix, const float* x, std::ptrdiff_t apart, int rows, Scratch& own, Put put) const {
    for (int o = 0; o < matrix.outputs; o += PANEL) {
      ::multiply(matrix, o / PANEL, 1, x, apart, rows, own.y.data(), PANEL, own.unpacked.data());
      for (int t = 0; t < rows; t++) put(t, o, own.y.data() + (std::ptrdiff_t)t * PANEL);
    }
  }

  // y (rows, outputs) = gelu(a matrix times x).
  void activate(const Matrix& matrix, const float* x, std::ptrdiff_t apart, int rows, Scratch& own, float* y) const {
    multiply(matrix, x, apart, rows, own, [&](int t, int o, const float* from) {
      float* to = y + (std::ptrdiff_t)t * matrix.outputs + o;
      for (int i = 0; i < PANEL; i += LANES) store(to + i, gelu(load(from + i)));
    });
  }

  // The block's rows += a matrix times y.
  void add(const Matrix& matrix, const float* y, int block, Scratch& own) const {
    const int from = begin(block), rows = end(block) - from;
    multiply(matrix, y, matrix.inputs, rows, own, [&](int t, int o, const float* more) {
      float* to = row(from + t) + o;
      for (int i = 0; i < PANEL; i += LANES) store(to + i, load(to + i) + load(more + i));
    });
  }

  // Convolutions over three rows: those lie one behind the other, as a weight's taps do.
  void widen(const float* mel, int block, Scratch& own) {
    const int from = 2 * begin(block), rows = 2 * end(block) - from, mels = shape_.mels;
    activate(first_, mel + (std::ptrdiff_t)from * mels, mels, rows, own,
             convolved_.data() + (std::size_t)(from + 1) * shape_.width);
  }

  void halve(int block, Scratch& own) {
    const int from = begin(block), rows = end(block) - from, width = shape_.width;
    if (rows <= 0) return;
    activate(second_, convolved_.data() + (std::ptrdiff_t)from * 2 * width, 2 * width, rows, own, row(from));
    const float* positions = positions_ + (std::ptrdiff_t)from * width;
    for (std::size_t i = 0; i < (std::size_t)rows * width; i += LANES)
      store(row(from) + i, load(row(from) + i) + load(positions + i));
  }

  const float* normed(const Norm& norm, int block, Scratch& own) const {
    for (int t = begin(block); t < end(block); t++)
      normalise(norm, row(t), own.normed.data() + (std::ptrdiff_t)(t - begin(block)) * shape_.width, shape_.width);
    return own.normed.data();
  }

  void project(int at, int block, Scratch& own) {
    const int from = begin(block), rows = end(block) - from, width = shape_.width, size = this->size();
    const Layer& layer = layers_[at];
    Offered& offered = offered_[at % 2];
    const float scale = 1.0f / std::sqrt((float)size);
    multiply(layer.projection, normed(layer.own_norm, block, own), width, rows, own, [&](int t, int o, const float* y) {
      const int frame = from + t, head = o % width / size, d = o % size;
      if (o < width) {
        float* to = offered.queries.data() + (std::ptrdiff_t)frame * width + o;
        for (int i = 0; i < PANEL; i += LANES) store(to + i, load(y + i) * scale);
      } else if (o < 2 * width) {
        float* to = keys(offered, head, frame) + d * PANEL + frame % PANEL;
        for (int i = 0; i < PANEL; i++) to[i * PANEL] = y[i];
      } else {
        std::copy(y, y + PANEL, values(offered, head) + (std::ptrdiff_t)frame * size + d);
      }
    });
  }

  // The panel that holds a frame's key.
  float* keys(Offered& offered, int head, int frame) const {
    return offered.keys.data() + (head * padded() + frame / PANEL * PANEL) * size();
  }
  float* values(Offered& offered, int head) const {
    return offered.values.data() + (std::ptrdiff_t)head * frames_ * size();
  }

  void attend(int at, int block, Scratch& own) {
    for (int from = begin(block); from < end(block); from += QUERIES) {
      const int rows = std::min(QUERIES, end(block) - from);
      for (int head = 0; head < shape_.heads; head++) attend_head(offered_[at % 2], head, from, rows, block, own);
    }
    add(layers_[at].out, own.attended.data(), block, own);
  }

  void attend_head(Offered& offered, int head, int from, int rows, int block, Scratch& own) {
    const int width = shape_.width, size = this->size(), count = (int)padded();
    const float* queries = offered.queries.data() + (std::ptrdiff_t)from * width + head * size;
    float *scores = own.scores.data(), totals[QUERIES];
    for (int frame = 0; frame < count; frame += PANEL)
      for (int part = 0; part < PANEL; part += PART)
        tiles(Plain<float>(keys(offered, head, frame) + part, PANEL), queries, width, size, rows, scores + frame + part,
              count);
    for (int t = 0; t < rows; t++) {
      float* line = scores + (std::ptrdiff_t)t * count;
      std::fill(line + frames_, line + count, -std::numeric_limits<float>::infinity());
      totals[t] = soften(line, count);
    }
    float* out = own.attended.data() + (std::ptrdiff_t)(from - begin(block)) * width + head * size;
    for (int part = 0; part < size; part += PART)
      tiles(Plain<float>(values(offered, head) + part, size), scores, count, frames_, rows, out + part, width);
    for (int t = 0; t < rows; t++)
      for (int d = 0; d < size; d += LANES) {
        float* to = out + (std::ptrdiff_t)t * width + d;
        store(to, load(to) / totals[t]);
      }
  }

  void feed(int at, int block, Scratch& own) {
    const Layer& layer = layers_[at];
    activate(layer.up, normed(layer.up_norm, block, own), shape_.width, end(block) - begin(block), own, own.hidden.data());
    add(layer.down, own.hidden.data(), block, own);
  }

  Shape shape_;
  Matrix first_, second_;
  const float* positions_;
  std::vector<Layer> layers_;
  Norm norm_;
  Crew crew_;
  std::vector<Scratch> scratch_;
  std::vector<float> convolved_;
  Offered offered_[2];
  int frames_ = 0, block_ = 0;
  float* x_ = nullptr;
};

}  // namespace

extern "C" {

// The layers are copied, the weights are not. Null: no threads could be had.
void* starling_encoder(Shape shape, const Matrix* first, const Matrix* second, const float* positions,
                       const Layer* layers, Norm norm, int threads) try {
  return new Encoder(shape, *first, *second, positions, layers, norm, threads);
} catch (...) {
  return nullptr;
}

void starling_encoder_end(void* encoder) { delete static_cast<Encoder*>(encoder); }

// 0: there was not enough memory.
int starling_encoder_run(void* encoder, const float* mel, int frames, float* x) try {
  static_cast<Encoder*>(encoder)->run(mel, frames, x);
  return 1;
} catch (...) {
  return 0;
}
}
