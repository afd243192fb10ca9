// cblas_sgemm for MLX's CPU backend: products with few rows become matrix times vector, row by row.
//
// OpenBLAS packs both operands before a product, which costs several times what reading a weight once does. Only its
// kernels for AVX-512 leave that out where a product is small. Which way is faster is measured, not assumed.

#include <algorithm>
#include <chrono>
#include <cstddef>
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

// Microseconds for `rows` rows times a weight in chunks, the best of three.
template <typename Multiply>
double best_of_three(int rows, Multiply multiply) {
  constexpr int chunk = 64, k = 512, chunks = 16;
  std::vector<float> x(rows * k, 1.0f), y(rows * chunk), weight(chunks * chunk * k, 1.0f);
  double best = 1e9;
  for (int turn = 0; turn < 3; turn++) {
    auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < chunks; i++)
      multiply(PLAIN, TRANSPOSED, rows, chunk, k, 1.0f, x.data(), k, weight.data() + i * chunk * k, k, 0.0f, y.data(),
               chunk);
    std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begun;
    best = std::min(best, passed.count());
  }
  return best;
}

}  // namespace

extern "C" {

int starling_few_rows = 0;  // products with up to so many rows go row by row

// Takes cblas_sgemm and cblas_sgemv of the library behind; returns the number of rows up to which the latter is
// faster by a tenth, `most` at most.
int starling_begin(void* sgemm, void* sgemv, int most) {
  product = reinterpret_cast<Product>(sgemm);
  vector = reinterpret_cast<Vector>(sgemv);
  auto whole = [](int ta, int tb, int m, int n, int k, auto... rest) { product(ROW_MAJOR, ta, tb, m, n, k, rest...); };
  int few = 0;
  while (few < most && best_of_three(few + 1, row_by_row) < 0.9 * best_of_three(few + 1, whole)) few++;
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
