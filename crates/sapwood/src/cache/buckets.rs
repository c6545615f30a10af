//! The buckets of the record cache, in chunks with a lock each. They become more and fewer one by one, as in linear hashing: the
//! newest bucket has records of its twin, which was split for it and gets them back.

use crate::cache::bucket::{BUCKET, Bucket, Name};
use crate::lock_order::{RankedMutex, rank};
use crate::operation::KeyspaceId;
use memmap2::MmapMut;

/// Number of buckets with one lock: as many as a word has bits.
pub const BUCKETS_A_CHUNK: usize = 64;

#[derive(Default)]
pub(crate) struct Buckets {
    pub chunks: Vec<RankedMutex<rank::RecordChunk, Chunk>>,
    pub count: usize,
    /// How often it lost a bucket.
    pub shrinks: u64,
}

pub(crate) struct Chunk {
    pub memory: MmapMut,
    /// A bit for each bucket that has records.
    pub filled: u64,
    /// [`Buckets::shrinks`] when records last came from another bucket.
    pub moved: u64,
}

impl Chunk {
    pub fn has(&self, index: usize) -> bool {
        self.filled & (1 << (index % BUCKETS_A_CHUNK)) != 0
    }

    pub fn bucket(&mut self, index: usize) -> Bucket<'_> {
        let start = index % BUCKETS_A_CHUNK * BUCKET;
        Bucket(&mut self.memory[start..start + BUCKET])
    }

    pub fn insert(&mut self, index: usize, name: Name<'_>, value: &[u8], asked: bool) {
        self.filled |= 1 << (index % BUCKETS_A_CHUNK);
        self.bucket(index).insert(name, value, asked);
    }

    /// Removes all records of a bucket of which `is_removed` is true.
    pub fn remove_all(&mut self, index: usize, is_removed: impl Fn(KeyspaceId, &[u8]) -> bool) {
        if !self.has(index) {
            return;
        }
        let mut bucket = self.bucket(index);
        let removed: Vec<_> = bucket
            .records()
            .filter(|(name, ..)| is_removed(name.keyspace, name.key))
            .map(|(name, ..)| (name.tag, name.keyspace, name.key.to_vec()))
            .collect();
        for (tag, keyspace, key) in removed {
            if let Some(place) = bucket.find(Name { tag, keyspace, key: &key }) {
                bucket.remove(place);
            }
        }
    }
}

/// Index of the bucket for a hash, of `count` buckets.
pub fn index(hash: u64, count: usize) -> usize {
    let mask = count.next_power_of_two() - 1;
    let index = hash as usize & mask;
    if index < count { index } else { index & (mask >> 1) }
}

/// The bucket that was split when there were `count`.
pub fn twin(count: usize) -> usize {
    count - (1 << count.ilog2())
}

pub fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

impl Buckets {
    /// Takes the bucket's records out, if it has any, and leaves it empty.
    pub fn take(&mut self, index: usize) -> Option<Vec<u8>> {
        let chunk = self.chunks[index / BUCKETS_A_CHUNK].get_mut();
        if !chunk.has(index) {
            return None;
        }
        let mut bucket = chunk.bucket(index);
        let taken = bucket.0.to_vec();
        bucket.clear();
        chunk.filled &= !(1 << (index % BUCKETS_A_CHUNK));
        Some(taken)
    }

    /// Whether the bucket has room for the records of another one.
    pub fn have_room(&mut self, index: usize, others: &mut [u8]) -> bool {
        let chunk = self.chunks[index / BUCKETS_A_CHUNK].get_mut();
        !chunk.has(index) || chunk.bucket(index).has_room_for(&Bucket(others))
    }

    /// Records come to the bucket from another one.
    pub fn note_move(&mut self, to: usize) {
        self.chunks[to / BUCKETS_A_CHUNK].get_mut().moved = self.shrinks;
    }

    pub fn put(&mut self, index: usize, name: Name<'_>, value: &[u8], asked: bool) {
        self.chunks[index / BUCKETS_A_CHUNK].get_mut().insert(index, name, value, asked);
    }

    /// Adds a bucket. Returns whether there was memory for it.
    pub fn grow(&mut self, hash: impl Fn(KeyspaceId, &[u8]) -> u64) -> bool {
        if self.count == self.chunks.len() * BUCKETS_A_CHUNK {
            match MmapMut::map_anon(BUCKETS_A_CHUNK * BUCKET) {
                Ok(memory) => self.chunks.push(RankedMutex::new(Chunk { memory, filled: 0, moved: 0 })),
                Err(_) => return false,
            }
        }
        self.count += 1;
        if self.count > 1
            && let Some(mut taken) = self.take(twin(self.count - 1))
        {
            self.note_move(self.count - 1);
            for (name, value, asked) in Bucket(&mut taken).records() {
                self.put(index(hash(name.keyspace, name.key), self.count), name, value, asked);
            }
        }
        true
    }

    pub fn shrink(&mut self) {
        let taken = self.take(self.count - 1);
        self.count -= 1;
        self.shrinks += 1;
        // If both do not fit into one, half of the records go anyway: those of the moved ones go that were not
        // requested again.
        if self.count > 0
            && let Some(mut taken) = taken
        {
            self.note_move(twin(self.count));
            let fit = self.have_room(twin(self.count), &mut taken);
            for (name, value, asked) in Bucket(&mut taken).records().filter(|(.., asked)| fit || *asked) {
                self.put(twin(self.count), name, value, asked);
            }
        }
        self.chunks.truncate(self.count.div_ceil(BUCKETS_A_CHUNK));
    }
}
