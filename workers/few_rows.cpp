// cblas_sgemm for MLX's CPU backend: products with few rows become matrix times vector, row by row.
//
// OpenBLAS packs both operands before a product, which costs several times what reading a weight once does. Only its
// kernels for AVX-512 leave that out where a product is small. Which way is faster is measured, not assumed.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

using Product = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
using Vector = void (*)(int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

Product product = nullptr;
Vector vector = nullptr;
void row_by_row(int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb,
                float beta, float* c, int ldc) {
  for (std::ptrdiff_t i = 0; i < m; i++) {
    const float* row = ta == PLAIN ? a + i * lda : a + i;
    float* out = c + i * ldc;
    if (beta == 0) std::fill(out, out + n, 0.0f);  // it may hold a NaN, and 0 * NaN is one
    if (tb == PLAIN)
      vector(ROW_MAJOR, TRANSPOSED, k, n, alpha, b, ldb, row, ta == PLAIN ? 1 : lda, beta, out, 1);
    else
      vector(ROW_MAJOR, PLAIN, n, k, alpha, b, ldb, row, ta == PLAIN ? 1 : lda, beta, out, 1);
  }
}

// Milliseconds for `rows` rows times all of a weight in chunks, half of them on a second thread, as a model's streams
// have them. The weight is larger than a cache, as a model's are: where it stays in one, or a core is alone with its
// own, row by row looks faster than it is, because each row reads the weight again.
template <typename Multiply>
double once(int rows, const std::vector<float>& weight, Multiply multiply) {
  constexpr int chunk = 64, k = 576;
  auto run = [&](std::size_t from, std::size_t to) {
    std::vector<float> x(rows * k, 1.0f), y(rows * chunk);
    for (std::size_t at = from; at + chunk * k <= to; at += chunk * k)
      multiply(PLAIN, TRANSPOSED, rows, chunk, k, 1.0f, x.data(), k, weight.data() + at, k, 0.0f, y.data(), chunk);
  };
  auto begun = std::chrono::steady_clock::now();
  std::thread other(run, weight.size() / 2, weight.size());
  run(0, weight.size() / 2);
  other.join();
  std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begun;
  return passed.count();
}

}  // namespace

extern "C" {

int starling_few_rows = 0;  // products with up to so many rows go row by row

// Takes cblas_sgemm and cblas_sgemv of the library behind; returns the number of rows up to which the latter is
// faster by a tenth (one row: not much slower), `most` at most.
int starling_begin(void* sgemm, void* sgemv, int most) {
  product = reinterpret_cast<Product>(sgemm);
  vector = reinterpret_cast<Vector>(sgemv);
  auto whole = [](int ta, int tb, int m, int n, int k, auto... rest) { product(ROW_MAJOR, ta, tb, m, n, k, rest...); };
  std::vector<float> weight(std::size_t{16} << 20, 1.0f);
  int few = 0;
  for (bool faster = true; faster && few < most; few += faster) {
    double by_row = 1e9, at_once = 1e9;
    for (int turn = 0; turn < 5; turn++) {
      by_row = std::min(by_row, once(few + 1, weight, row_by_row));
      at_once = std::min(at_once, once(few + 1, weight, whole));
    }
    // One row is packed for nothing by any library that packs, so only a clear measurement speaks against it.
    faster = by_row < (few == 0 ? 1.25 : 0.9) * at_once;
  }
  return starling_few_rows = few;
}

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                 int ldb, float beta, float* c, int ldc) {
  if (order == ROW_MAJOR && m <= starling_few_rows && n > 0 && k > 0)
    row_by_row(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  else
    product(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
