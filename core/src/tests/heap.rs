//! Counts the bytes that a thread has on the heap, in the sizes that a server's allocator hands out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::alloc_size::allocated;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(sign: isize, layout: Layout) {
    let bytes = sign * allocated(layout.size()) as isize;
    // A thread that is ending has no counters any more, and nobody asks for them.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is handed to the system's allocator as it came; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here and there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-1, layout);
        // SAFETY: the memory came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What `work` returns, and the most bytes it had on the heap at a time.
pub(super) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before).unsigned_abs())
}

/// What `work` returns, and how many bytes it left on the heap.
pub(super) fn growth_of<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = LIVE.get();
    let result = work();
    (result, LIVE.get() - before)
}

#[test]
fn sizes_are_rounded_as_jemalloc_does() {
    let classes =
        [(0, 0), (1, 8), (9, 16), (40, 48), (128, 128), (129, 160), (257, 320), (1025, 1280), (4097, 5120)];
    for (asked, taken) in classes {
        assert_eq!(allocated(asked), taken, "{asked}");
    }
}
