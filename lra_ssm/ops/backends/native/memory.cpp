// Huge pages for large results: above 32 MB malloc takes fresh memory for every tensor, and a page fault for each 4 KB
// of it is up to a fifth of a scan's time.

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

extern "C" void ask_for_huge_pages(void* data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t HUGE_PAGE = 2 << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // refused, it changes nothing
#else
    (void)data, (void)bytes;
#endif
}
