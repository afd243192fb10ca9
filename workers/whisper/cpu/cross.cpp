// What the decoder's cross attention needs of a window, of all layers at once: keys and values of the encoder's frames.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "../../cpu/panels.h"
#include "../../cpu/threads.h"

namespace {

constexpr int FRAMES = 16;          // decoder.cpp's
constexpr int BLOCK = 16 * TILE;    // frames that a thread takes at once

class Cross {
 public:
  explicit Cross(int threads) : crew_(threads), scratch_(threads) {}

  // matrix: keys' and values' of each layer in turn. out: likewise (heads, frames / FRAMES, size, FRAMES) and
  // (heads, frames, size).
  void run(int layers, const Matrix* matrix, int heads, int frames, const float* x, float* const* out) {
    const int blocks = (frames + BLOCK - 1) / BLOCK;
    for (auto& own : scratch_) {
      own.unpacked.resize((std::size_t)matrix->inputs * PANEL);
      own.y.resize((std::size_t)BLOCK * PANEL);
    }
    crew_.run(1, [&](int index) {
      int phase = 0;
      crew_.share(phase, 2 * layers * blocks, [&](int part) {
        const int which = part / blocks, from = part % blocks * BLOCK, rows = std::min(BLOCK, frames - from);
        compute(matrix[which], which % 2 == 0, heads, frames, from, rows, x, out[which], scratch_[index]);
      });
    });
  }

 private:
  struct Scratch {
    std::vector<float> unpacked, y;
  };

  static void compute(const Matrix& matrix, bool keys, int heads, int frames, int from, int rows, const float* x,
                      float* out, Scratch& own) {
    const int width = matrix.inputs, size = matrix.outputs / heads, blocks = (frames + FRAMES - 1) / FRAMES;
    for (int o = 0; o < matrix.outputs; o += PANEL) {
      multiply(matrix, o / PANEL, 1, x + (std::ptrdiff_t)from * width, width, rows, own.y.data(), PANEL, own.unpacked.data());
      const int head = o / size, d = o % size;
      for (int t = 0; t < rows; t++) {
        const float* y = own.y.data() + (std::ptrdiff_t)t * PANEL;
        const int frame = from + t;
        if (keys) {
          float* to = out + (((std::ptrdiff_t)head * blocks + frame / FRAMES) * size + d) * FRAMES + frame % FRAMES;
          for (int i = 0; i < PANEL; i++) to[i * FRAMES] = y[i];
        } else {
          std::copy(y, y + PANEL, out + ((std::ptrdiff_t)head * frames + frame) * size + d);
        }
      }
    }
  }

  Crew crew_;
  std::vector<Scratch> scratch_;
};

}  // namespace

extern "C" {

// Null: no threads could be had.
void* starling_cross(int threads) try {
  return new Cross(threads);
} catch (...) {
  return nullptr;
}

void starling_cross_end(void* cross) { delete static_cast<Cross*>(cross); }

// 0: there was not enough memory.
int starling_cross_run(void* cross, int layers, const Matrix* matrix, int heads, int frames, const float* x,
                       float* const* out) try {
  static_cast<Cross*>(cross)->run(layers, matrix, heads, frames, x, out);
  return 1;
} catch (...) {
  return 0;
}
}
