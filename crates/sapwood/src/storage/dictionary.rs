//! Dictionaries of Zstandard: what the leaves of a keyspace have in common, so that each need not say it itself. One is trained of the first
//! leaves of a keyspace that is compressed with a dictionary, comes into the manifest with the first node that needs it, and stays.
//!
//! Invariant: a version that has an address of a node has the dictionary that the node needs.

use crate::operation::KeyspaceId;
use crate::storage::sample_room::{SampleRoom, SharedTraining};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest dictionary in bytes: longer ones saved little more where we tried, and each is in memory twice and in every checkpoint.
pub(crate) const DICTIONARY_MAX: usize = 32 << 10;

/// Most bytes of packed leaves that a dictionary is trained of: forty times its length. The library advises a hundred times, which took longer and
/// saved as much. A small memory budget has fewer.
const SAMPLES: usize = 5 << 18;
/// A dictionary saves at least this part (a 32nd) of what nodes have without one: each is in every checkpoint, and in memory.
#[cfg_attr(not(feature = "zstd"), allow(dead_code, reason = "there is no dictionary"))]
const PAYS: usize = 32;
/// Samples have so many times (count) the length of a dictionary.
const SAMPLES_TO_DICTIONARY: usize = 40;
/// Of so many leaves (count) one is a sample, so that the first dictionary knows more than the first keys.
const SAMPLE_OF: usize = 4;

/// See the module.
pub(crate) struct Dictionary {
    bytes: Vec<u8>,
    #[cfg(feature = "zstd")]
    decoder: zstd::zstd_safe::DDict<'static>,
}

impl Dictionary {
    /// `None` if it is empty or too long.
    pub fn new(bytes: Vec<u8>) -> Option<Arc<Self>> {
        if bytes.is_empty() || bytes.len() > DICTIONARY_MAX {
            return None;
        }
        #[cfg(feature = "zstd")]
        let decoder = zstd::zstd_safe::DDict::create(&bytes);
        Some(Arc::new(Self {
            bytes,
            #[cfg(feature = "zstd")]
            decoder,
        }))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[cfg(feature = "zstd")]
    pub fn decoder(&self) -> &zstd::zstd_safe::DDict<'static> {
        &self.decoder
    }
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a dictionary of {} bytes", self.bytes.len())
    }
}

impl PartialEq for Dictionary {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Dictionary {}

/// The dictionaries of a version, by keyspace. A clone costs nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Dictionaries(Option<Arc<BTreeMap<KeyspaceId, Arc<Dictionary>>>>);

impl Dictionaries {
    #[inline]
    pub fn get(&self, keyspace: KeyspaceId) -> Option<&Arc<Dictionary>> {
        self.0.as_ref()?.get(&keyspace)
    }

    /// Returns false if the keyspace has another one.
    pub fn insert(&mut self, keyspace: KeyspaceId, dictionary: Arc<Dictionary>) -> bool {
        if let Some(found) = self.get(keyspace) {
            return *found == dictionary;
        }
        Arc::make_mut(self.0.get_or_insert_default()).insert(keyspace, dictionary);
        true
    }

    /// The keyspace has no nodes any more.
    pub fn remove(&mut self, keyspace: KeyspaceId) {
        if self.get(keyspace).is_some()
            && let Some(all) = &mut self.0
        {
            Arc::make_mut(all).remove(&keyspace);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (KeyspaceId, &Arc<Dictionary>)> {
        self.0.iter().flat_map(|all| all.iter().map(|(keyspace, dictionary)| (*keyspace, dictionary)))
    }
}

/// What a dictionary is trained of.
#[derive(Debug, Default)]
pub(crate) struct Training {
    seen: usize,
    samples: Vec<u8>,
    lens: Vec<usize>,
    trained: Option<Arc<Dictionary>>,
    /// Nothing could be made of the samples.
    has_failed: bool,
}

impl Training {
    /// The dictionary, once there is one.
    pub fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.trained.as_ref()
    }

    /// Sees a packed leaf, of which it may make a sample, if there is room. The dictionary is for this level.
    pub fn see(this: &Arc<SharedTraining>, packed: &[u8], of_all: &SampleRoom, level: u8) {
        let room = of_all.most().min(SAMPLES);
        let mut training = this.lock();
        if training.trained.is_some() || training.has_failed || packed.len() > room / 8 {
            return;
        }
        training.seen += 1;
        if training.seen % SAMPLE_OF != 1 || !of_all.take(this, packed.len()) {
            return;
        }
        training.samples.extend_from_slice(packed);
        training.lens.push(packed.len());
        if training.samples.len() >= room - room / 8 {
            let most = DICTIONARY_MAX.min(room / SAMPLES_TO_DICTIONARY);
            training.trained = train(&training.samples, &training.lens, most, level);
            training.has_failed = training.trained.is_none();
            training.forget_samples();
            of_all.give_back(this);
        }
    }

    /// Begins anew.
    pub fn forget_samples(&mut self) {
        (self.samples, self.lens) = Default::default();
    }

    /// Bytes of samples.
    #[cfg(test)]
    pub fn sampled(&self) -> usize {
        self.samples.len()
    }
}

/// Trains a dictionary of at most `most` bytes of the first three quarters of the samples. The others must become shorter by it: one that is made of too
/// few, or of what has little in common, makes nodes longer.
#[cfg(feature = "zstd")]
fn train(samples: &[u8], lens: &[usize], most: usize, level: u8) -> Option<Arc<Dictionary>> {
    use zstd::zstd_safe::{CCtx, CDict, compress_bound};
    let (of_training, of_test) = lens.split_at(lens.len() / 4 * 3);
    let (training, mut test) = samples.split_at(of_training.iter().sum());
    let bytes = zstd::dict::from_continuous(training, of_training, most).ok()?;
    let level = i32::from(level);
    let (mut encoder, with) = (CCtx::create(), CDict::create(&bytes, level));
    let (mut lens_with, mut lens_without) = (0, 0);
    for len in of_test {
        let sample;
        (sample, test) = test.split_at(*len);
        let mut out = vec![0; compress_bound(*len)];
        lens_with += encoder.compress_using_cdict(&mut out[..], sample, &with).ok()?;
        lens_without += encoder.compress(&mut out[..], sample, level).ok()?;
    }
    if lens_with + lens_without / PAYS > lens_without { None } else { Dictionary::new(bytes) }
}

#[cfg(not(feature = "zstd"))]
fn train(_: &[u8], _: &[usize], _: usize, _: u8) -> Option<Arc<Dictionary>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_trained_of_a_part_of_what_is_seen_and_only_once() {
        for room in [64 << 10, usize::MAX] {
            let (training, mut seen, most) = (Arc::<SharedTraining>::default(), 0, room.min(SAMPLES));
            let room = SampleRoom::new(room);
            for number in 0u32.. {
                let leaf = format!("{number} events of user {} were seen by {}, ", number % 97, number * 7)
                    .repeat(20);
                Training::see(&training, leaf.as_bytes(), &room, 3);
                seen += leaf.len();
                let training = training.lock();
                assert!(training.samples.len() <= most);
                if training.dictionary().is_some() || training.has_failed {
                    break;
                }
            }
            let dictionary = Arc::clone(training.lock().dictionary().expect("trained"));
            assert!((most / 2 * SAMPLE_OF..most * (SAMPLE_OF + 1)).contains(&seen), "{seen} bytes were seen");
            assert!(dictionary.bytes().len() <= most / SAMPLES_TO_DICTIONARY);
            assert_eq!((training.lock().samples.capacity(), room.taken()), (0, 0), "the memory went back");
            (0..100).for_each(|_| Training::see(&training, &[7; 1000], &room, 3));
            assert_eq!(training.lock().dictionary(), Some(&dictionary));
        }
    }

    #[test]
    fn a_keyspace_has_one_dictionary_as_long_as_it_has_nodes() {
        let (mut all, one, two) = (Dictionaries::default(), KeyspaceId(1), KeyspaceId(2));
        let dictionary = |byte| Dictionary::new(vec![byte; 99]).unwrap();
        assert!(all.insert(one, dictionary(1)) && all.insert(one, dictionary(1)));
        assert!(!all.insert(one, dictionary(2)) && all.insert(two, dictionary(2)));
        let before = all.clone();
        all.remove(one);
        all.remove(KeyspaceId(3));
        assert_eq!(all.iter().map(|(id, _)| id).collect::<Vec<_>>(), [two]);
        assert_eq!(before.get(one), Some(&dictionary(1)), "a snapshot still reads with it");
        assert!(
            Dictionary::new(Vec::new()).is_none() && Dictionary::new(vec![0; DICTIONARY_MAX + 1]).is_none()
        );
    }

    /// One that was trained of random bytes made nodes longer.
    #[test]
    fn what_has_nothing_in_common_gets_none() {
        use rand::rngs::StdRng;
        use rand::{Rng, SeedableRng};
        let (training, mut rng) = (Arc::<SharedTraining>::default(), StdRng::seed_from_u64(1));
        let room = SampleRoom::new(128 << 10);
        while !training.lock().has_failed {
            let mut leaf = [0; 4000];
            rng.fill(&mut leaf[..]);
            Training::see(&training, &leaf, &room, 3);
            assert!(training.lock().dictionary().is_none());
        }
        assert_eq!(training.lock().samples.capacity(), 0, "the memory went back");
    }
}
