// Driver resources of a thread: handles and plans of libraries.
#pragma once

#include <mutex>
#include <vector>

namespace gradual::cuda {

// This thread's T. When a thread ends, a later thread reuses its T. None is ever destroyed: at the end of the process
// the driver may be destroyed before the main thread's objects.
template <class T> T& inherited() {
  struct Left {
    std::mutex mutex;
    std::vector<T*> of_threads;
  };
  static Left& left = *new Left;
  struct Mine {
    T* object = nullptr;
    Mine() {
      {
        const std::lock_guard lock(left.mutex);
        if (!left.of_threads.empty()) {
          object = left.of_threads.back();
          left.of_threads.pop_back();
        }
      }
      if (!object) object = new T();
    }
    ~Mine() {
      const std::lock_guard lock(left.mutex);
      left.of_threads.push_back(object);
    }
  };
  thread_local Mine mine;
  return *mine.object;
}

}  // namespace gradual::cuda
