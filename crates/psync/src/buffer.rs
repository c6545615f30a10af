//! Aligned memory for direct I/O, pooled so that the hot path allocates nothing.
//!
//! Invariants: a buffer's address and capacity are multiples of [`AlignedBuffer::ALIGNMENT`]; all of its bytes
//! are initialised (to zero at first). A pool keeps idle at most the bytes it was made for, plus what it is
//! [allowed](BufferPool::allow). Of further buffers it keeps only the addresses, up to [`COLD`] times the bytes
//! it was made for. The buffer returned last is kept, so buffers of a length that is no longer used disappear
//! gradually.

use crate::lock::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory at an address that direct I/O accepts. Derefs to `[u8]` of the requested length.
pub struct AlignedBuffer {
    memory: NonNull<u8>,
    capacity: usize,
    len: usize,
    /// Whether the memory comes from the operating system (mmap) rather than the allocator.
    mapped: bool,
    home: Option<Arc<Shelf>>,
}

// SAFETY: the buffer owns its memory alone, as a `Box<[u8]>` would.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access gives out `&[u8]` only.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Address and capacity are multiples of this many bytes: enough for every block device that we know.
    pub const ALIGNMENT: usize = 4096;

    /// A zeroed buffer of `len` bytes.
    ///
    /// # Panics
    /// If no memory can be as long.
    pub fn new(len: usize) -> Self {
        Self::allocate(len, Self::capacity_for(len) >= Self::MAPPED)
    }

    fn allocate(len: usize, mapped: bool) -> Self {
        let (capacity, mapped) = (Self::capacity_for(len), MAPS && mapped);
        let layout = Self::layout(capacity);
        let memory = if mapped {
            map(capacity)
        } else {
            // SAFETY: the layout has a size of at least ALIGNMENT, so not zero.
            NonNull::new(unsafe { alloc_zeroed(layout) })
        };
        let Some(memory) = memory else { handle_alloc_error(layout) };
        Self { memory, capacity, len, mapped, home: None }
    }

    /// Buffers of at least this many bytes, and all buffers of pools, are mapped from the operating system and
    /// returned to it. An allocator would take them from its per-thread caches, and keep them there: threads
    /// that only read and wrote took three times the size of their buffers.
    const MAPPED: usize = 64 << 10;

    /// The capacity of a buffer of `len` bytes. Long buffers come in few sizes, so that a pooled buffer left by
    /// one read fits the next one. Unused pages take no memory.
    pub fn capacity_for(len: usize) -> usize {
        let unit = if len > Self::MAPPED { Self::MAPPED } else { Self::ALIGNMENT };
        // What is too long is refused when it is allocated.
        len.max(1).checked_next_multiple_of(unit).unwrap_or(usize::MAX)
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, Self::ALIGNMENT)
            .expect("a capacity that was allocated, or fits isize")
    }

    /// The bytes of memory behind the buffer.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The visible length. Does not look at the memory, which a device may be writing to.
    pub(crate) fn visible_len(&self) -> usize {
        self.len
    }

    /// Changes the visible length.
    ///
    /// # Panics
    /// If `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} over capacity {}", self.capacity);
        self.len = len;
    }
}

/// Whether [`map`] works on this system.
const MAPS: bool = cfg!(all(target_os = "linux", not(miri)));

/// Maps zeroed pages; `None` if that fails.
#[cfg(all(target_os = "linux", not(miri)))]
fn map(capacity: usize) -> Option<NonNull<u8>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, of no file, wherever there is room: nothing that exists is touched.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), capacity, access, kind, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast()).and_then(NonNull::new)
}

/// Releases a buffer's memory, but keeps its addresses; when used again, it is zero. Returns whether it worked.
#[cfg(all(target_os = "linux", not(miri)))]
fn cool(buffer: &mut AlignedBuffer) -> bool {
    // SAFETY: mapped with this length, and `&mut` is the only access; any content will do, zeros too.
    let cooled =
        unsafe { libc::madvise(buffer.memory.as_ptr().cast(), buffer.capacity, libc::MADV_DONTNEED) };
    cooled == 0
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn cool(_: &mut AlignedBuffer) -> bool {
    false
}

/// Unmaps what [`map`] returned.
#[cfg(all(target_os = "linux", not(miri)))]
fn unmap(memory: NonNull<u8>, capacity: usize) {
    // SAFETY: mapped by `map` with this length, and owned by the buffer that is being dropped.
    unsafe { libc::munmap(memory.as_ptr().cast(), capacity) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(_: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn unmap(_: NonNull<u8>, _: usize) {}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` is valid for `capacity` initialised bytes, `len <= capacity`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put(Self { len: self.capacity, home: None, ..*self });
        } else if self.mapped {
            unmap(self.memory, self.capacity);
        } else {
            // SAFETY: allocated in `new` with the same layout; a buffer with a home gave its memory to the shelf above.
            unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.len, self.capacity)
    }
}

/// Hands out [`AlignedBuffer`]s, and takes them back when they are dropped.
#[derive(Clone, Debug)]
pub struct BufferPool {
    shelf: Arc<Shelf>,
}

#[derive(Debug)]
struct Shelf {
    /// Bytes that may be idle, whatever is in use.
    spare: usize,
    kept: Mutex<Kept>,
}

/// Limits the addresses that a pool keeps without memory, as a multiple of the bytes it may keep with memory:
/// enough for the buffers of many concurrent readers. Each is a mapping, of which a process may have 65,530,
/// and takes page table memory that is not counted.
const COLD: usize = 16;

/// The pool hands out an idle buffer of at most this many times the requested size.
const LARGER: usize = 4;

#[derive(Debug, Default)]
struct Kept {
    /// Bytes of buffers with memory (`idle`), and without (`cold`).
    idle: usize,
    cold: usize,
    /// Bytes of buffers in use, and the limit for these and idle ones together, on top of `spare`.
    out: usize,
    allowed: usize,
    /// Number of buffers returned so far.
    puts: u64,
    /// By capacity.
    stacks: BTreeMap<usize, Stack>,
}

#[derive(Debug, Default)]
struct Stack {
    /// Each with its return number, in ascending order.
    idle: VecDeque<(u64, AlignedBuffer)>,
    /// Buffers without memory: cheaper to keep than to map and unmap again.
    cold: Vec<AlignedBuffer>,
}

impl Kept {
    /// Bytes that may be idle.
    fn idle_max(&self, spare: usize) -> usize {
        spare.saturating_add(self.allowed.saturating_sub(self.out))
    }

    fn put(&mut self, buffer: AlignedBuffer) {
        self.puts += 1;
        self.idle += buffer.capacity;
        self.stacks.entry(buffer.capacity).or_default().idle.push_back((self.puts, buffer));
    }

    fn put_cold(&mut self, buffer: AlignedBuffer) {
        self.cold += buffer.capacity;
        self.stacks.entry(buffer.capacity).or_default().cold.push(buffer);
    }

    /// Takes a buffer of this capacity, or an idle one of up to `most` bytes.
    fn take(&mut self, capacity: usize, most: usize) -> Option<AlignedBuffer> {
        let taken = self.find(capacity, most);
        self.out += taken.as_ref().map_or(capacity, AlignedBuffer::capacity);
        taken
    }

    fn find(&mut self, capacity: usize, most: usize) -> Option<AlignedBuffer> {
        let mut fits = self.stacks.range_mut(capacity..=most);
        let idle = fits.find_map(|(_, stack)| stack.idle.pop_back());
        if let Some((_, buffer)) = idle {
            self.idle -= buffer.capacity;
            return Some(buffer);
        }
        let buffer = self.stacks.get_mut(&capacity)?.cold.pop()?;
        self.cold -= capacity;
        Some(buffer)
    }

    /// Removes the idle buffer that was returned first, if there are more idle bytes than allowed.
    fn take_surplus(&mut self, spare: usize) -> Option<AlignedBuffer> {
        if self.idle <= self.idle_max(spare) {
            return None;
        }
        let first = |stack: &&mut Stack| stack.idle.front().map_or(u64::MAX, |(put, _)| *put);
        let (_, buffer) = self.stacks.values_mut().min_by_key(first)?.idle.pop_front()?;
        self.idle -= buffer.capacity;
        Some(buffer)
    }

    /// Removes a cold buffer of the size that has the most cold bytes, if there are more than `most` cold
    /// bytes.
    fn take_commonest(&mut self, most: usize) -> Option<AlignedBuffer> {
        if self.cold <= most {
            return None;
        }
        let bytes = |(capacity, stack): &(&usize, &mut Stack)| **capacity * stack.cold.len();
        let buffer = self.stacks.iter_mut().max_by_key(bytes)?.1.cold.pop()?;
        self.cold -= buffer.capacity;
        Some(buffer)
    }
}

impl Shelf {
    /// Keeps the buffer (which has no home now), and releases the memory of others if there is no room.
    fn put(&self, buffer: AlignedBuffer) {
        let mut kept = self.kept.lock();
        kept.out -= buffer.capacity;
        if buffer.capacity > kept.idle_max(self.spare) {
            drop(kept);
            // Releasing all the others would not make enough room.
            return self.put_cold(buffer);
        }
        kept.put(buffer);
        let surplus = kept.take_surplus(self.spare);
        drop(kept);
        if let Some(surplus) = surplus {
            self.put_cold(surplus);
            self.cool_surplus();
        }
    }

    /// Releases the memory of surplus idle buffers, without holding the lock.
    fn cool_surplus(&self) {
        let next = || self.kept.lock().take_surplus(self.spare);
        while let Some(buffer) = next() {
            self.put_cold(buffer);
        }
    }

    /// Keeps a buffer's addresses without its memory, if possible.
    fn put_cold(&self, mut buffer: AlignedBuffer) {
        if !buffer.mapped || !cool(&mut buffer) {
            return;
        }
        self.kept.lock().put_cold(buffer);
        loop {
            let gone = self.kept.lock().take_commonest(COLD * self.spare);
            if gone.is_none() {
                return;
            }
        }
    }
}

impl BufferPool {
    /// A pool that keeps at most `spare` bytes of idle buffers, plus what it is [allowed](BufferPool::allow).
    pub fn new(spare: usize) -> Self {
        Self { shelf: Arc::new(Shelf { spare, kept: Mutex::default() }) }
    }

    /// Sets how many bytes buffers in use and idle ones may have together, in addition to the idle bytes that
    /// are always allowed. For work that takes and returns many buffers in varying numbers. Idle buffers above
    /// the new limit are released at once.
    pub fn allow(&self, bytes: usize) {
        self.shelf.kept.lock().allowed = bytes;
        self.shelf.cool_surplus();
    }

    /// The last value passed to [`BufferPool::allow`].
    pub fn allowed(&self) -> usize {
        self.shelf.kept.lock().allowed
    }

    /// Takes a buffer of `len` bytes with arbitrary (but initialised) content. It returns to the pool when
    /// dropped.
    pub fn take(&self, len: usize) -> AlignedBuffer {
        self.take_up_to(len, AlignedBuffer::capacity_for(len))
    }

    /// Like [`BufferPool::take`], but may return an idle buffer of up to four times the size, to avoid
    /// allocating memory. For callers that account for their memory by [`AlignedBuffer::capacity`].
    pub fn take_or_larger(&self, len: usize) -> AlignedBuffer {
        self.take_up_to(len, AlignedBuffer::capacity_for(len).saturating_mul(LARGER))
    }

    fn take_up_to(&self, len: usize, most: usize) -> AlignedBuffer {
        let capacity = AlignedBuffer::capacity_for(len);
        let mut kept = self.shelf.kept.lock();
        let idle = kept.take(capacity, most);
        // A buffer that was not idle leaves less room for idle ones.
        let surplus = kept.take_surplus(self.shelf.spare);
        drop(kept);
        if let Some(surplus) = surplus {
            self.shelf.put_cold(surplus);
            self.shelf.cool_surplus();
        }
        let mut buffer = idle.unwrap_or_else(|| AlignedBuffer::allocate(capacity, true));
        buffer.len = len;
        buffer.home = Some(Arc::clone(&self.shelf));
        buffer
    }

    /// Bytes of idle buffers in the pool.
    pub fn idle_bytes(&self) -> usize {
        self.shelf.kept.lock().idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_sized_and_reused() {
        let pool = BufferPool::new(1 << 20);
        let mut first = pool.take(5000);
        assert_eq!((first.len(), first.capacity()), (5000, 8192));
        assert_eq!(first.as_ptr() as usize % AlignedBuffer::ALIGNMENT, 0);
        first[0] = 7;
        let address = first.as_ptr() as usize;
        drop(first);
        assert_eq!(pool.idle_bytes(), 8192);
        let second = pool.take(8192);
        assert_eq!(second.as_ptr() as usize, address, "the idle buffer is used again");
        assert_eq!(pool.idle_bytes(), 0);
    }

    #[test]
    fn a_pool_keeps_no_more_than_its_share() {
        let pool = BufferPool::new(8192);
        let buffers: Vec<_> = (0..4).map(|_| pool.take(4096)).collect();
        drop(buffers);
        assert_eq!(pool.idle_bytes(), 8192);
    }

    #[test]
    fn as_much_as_is_allowed_is_kept_beside_what_is_in_use() {
        let pool = BufferPool::new(8192);
        pool.allow(64 << 10);
        let mut buffers: Vec<_> = (0..20).map(|_| pool.take(4096)).collect();
        // All that are in use are more than that.
        buffers.truncate(19);
        assert_eq!(pool.idle_bytes(), 4096);
        buffers.truncate(10);
        assert_eq!(pool.idle_bytes(), (8 << 10) + (64 << 10) - 10 * 4096);
        drop(buffers);
        assert_eq!(pool.idle_bytes(), (8 << 10) + (64 << 10));
        let long = pool.take(48 << 10);
        assert_eq!(
            pool.idle_bytes(),
            (8 << 10) + (16 << 10),
            "what is new takes the place of what lies idle"
        );
        drop(long);
        assert_eq!(pool.idle_bytes(), (8 << 10) + (64 << 10));
        pool.allow(0);
        assert!(pool.allowed() == 0 && pool.idle_bytes() <= 8192, "at once");
    }

    #[test]
    fn an_idle_buffer_that_is_somewhat_larger_will_do() {
        let pool = BufferPool::new(1 << 20);
        pool.take(16 << 10).fill(7);
        let buffer = pool.take_or_larger(5000);
        assert_eq!((buffer.len(), buffer.capacity(), buffer[0]), (5000, 16 << 10, 7));
        drop(buffer);
        assert_eq!(pool.take_or_larger(1000).capacity(), 16 << 10, "four times as large");
        assert_eq!(pool.take_or_larger(20 << 10).capacity(), 20 << 10, "too small");
        drop(pool.take(256 << 10));
        let small = [(); 3].map(|()| pool.take_or_larger(4096));
        let capacities = small.each_ref().map(|buffer| buffer.capacity());
        assert_eq!(capacities, [16 << 10, 4096, 4096], "and not far too large");
        drop(small);
        assert_eq!(pool.take(4096).capacity(), 4096, "who did not say so has what he asked for");
    }

    #[test]
    fn what_a_pool_does_not_keep_it_gives_out_again_without_its_content() {
        let pool = BufferPool::new(4096);
        let mut buffers: Vec<_> = (0..4).map(|_| pool.take(5000)).collect();
        let addresses: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr() as usize).collect();
        buffers.iter_mut().for_each(|buffer| buffer.fill(7));
        drop(buffers);
        assert_eq!(pool.idle_bytes(), 0);
        let again: Vec<_> = (0..4).map(|_| pool.take(8192)).collect();
        assert!(again.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)));
        assert!(!MAPS || again.iter().all(|buffer| addresses.contains(&(buffer.as_ptr() as usize))));
    }

    #[test]
    fn a_length_that_nobody_takes_any_more_makes_room() {
        let pool = BufferPool::new(64 << 10);
        drop((0..16).map(|_| pool.take(4096)).collect::<Vec<_>>());
        assert_eq!(pool.idle_bytes(), 64 << 10);
        pool.take(8192).fill(7);
        assert_eq!(pool.idle_bytes(), 64 << 10);
        assert!(pool.take(8192).iter().all(|byte| *byte == 7), "it has kept its memory");
        // One that is longer than all of the room takes nobody's.
        drop(pool.take(65 << 10));
        assert_eq!(pool.idle_bytes(), 64 << 10);
    }

    #[test]
    fn of_what_a_pool_does_not_keep_it_keeps_few_addresses() {
        let pool = BufferPool::new(8192);
        let cold = |len: usize| pool.shelf.kept.lock().stacks.get(&len).map_or(0, |stack| stack.cold.len());
        drop((0..100).map(|_| pool.take(8192)).collect::<Vec<_>>());
        assert_eq!(cold(8192), if MAPS { COLD } else { 0 });
        // Another length gets its part of them.
        drop((0..100).map(|_| pool.take(4096)).collect::<Vec<_>>());
        let (long, short) = (cold(8192), cold(4096));
        assert_eq!(2 * long + short, if MAPS { 2 * COLD } else { 0 });
        assert!(!MAPS || short >= COLD / 2, "{long} and {short}");
        // A long one may take the place of several.
        let pool = BufferPool::new(8192);
        drop((0..100).map(|_| pool.take(4096)).collect::<Vec<_>>());
        drop((0..3).map(|_| pool.take(32 << 10)).collect::<Vec<_>>());
        let kept = pool.shelf.kept.lock();
        assert!(kept.cold <= COLD * 8192, "{}", kept.cold);
        assert_eq!(kept.cold, kept.stacks.iter().map(|(len, stack)| len * stack.cold.len()).sum::<usize>());
    }
}
