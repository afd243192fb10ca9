// A crew without enough memory, and one without enough threads. Prints what came of it.

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <new>
#include <system_error>

#include "threads.h"

namespace {
std::atomic<int> threads_left{1000};
}

// In place of the system's.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*begin)(void*), void* given) {
  if (threads_left-- <= 0) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  return reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"))(thread, attributes, begin, given);
}

// Whether three phases of which some parts fail are said to have failed.
bool fails(Crew& crew, int bad, int* done) {
  std::atomic<int> parts{0};
  bool failed = false;
  try {
    crew.run(3, [&](int) {
      int phase = 0;
      for (int i = 0; i < 3; i++)
        crew.share(phase, 40, [&](int part) {
          std::this_thread::yield();
          if (i == 1 && part >= bad) throw std::bad_alloc();
          parts++;
        });
    });
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  *done = parts;
  return failed;
}

int main() {
  int done;
  for (int threads = 1; threads <= 4; threads++) {
    Crew crew(threads);
    for (int time = 0; time < 50; time++) {
      for (int bad : {0, 7, 39})
        if (!fails(crew, bad, &done) || done >= 120 || done < 40) return printf("%d parts were done\n", done), 1;
      if (fails(crew, 40, &done) || done != 120) return printf("of 120 parts %d were done\n", done), 1;
    }
  }
  threads_left = 2;
  try {
    Crew crew(5);
  } catch (const std::system_error&) {
    puts("fine");
  }
}
