//! Full-text search: for each word the list of texts that have it. A text adds its number to the lists of its words by merging, so
//! that no list is read to make it longer; texts may be indexed by several threads at once, and again.
//!
//! `cargo run -p sapwood --example posting_lists`

use sapwood::merge::{AddU64, Union};
use sapwood::{Database, Durability, Keyspace, KeyspaceOptions, Result};
use std::collections::{BTreeMap, BTreeSet};

const TEXTS: u32 = 5000;
/// Made up words, of which the first ones are in nearly every text.
const WORDS: u64 = 3000;

struct Index {
    db: Database,
    /// Number → text.
    texts: Keyspace,
    /// Word → numbers of texts, ascending, 4 bytes each.
    texts_with: Keyspace,
    /// Word → how often it is there in all texts.
    counts: Keyspace,
}

impl Index {
    fn open(db: &Database) -> Result<Self> {
        let texts_with = db.keyspace_with("texts with", KeyspaceOptions::new().merge(Union::of_len(4)))?;
        let counts = db.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64))?;
        Ok(Self { db: db.clone(), texts: db.keyspace("texts")?, texts_with, counts })
    }

    /// Adds a text: it can be found as soon as it is there.
    fn add(&self, number: u32, text: &str) -> Result<()> {
        let mut words: BTreeMap<&str, u64> = BTreeMap::new();
        text.split_whitespace().for_each(|word| *words.entry(word).or_default() += 1);
        let mut batch = self.db.batch();
        batch.insert(&self.texts, number.to_be_bytes(), text);
        for (word, count) in words {
            batch.merge(&self.texts_with, word, number.to_be_bytes());
            batch.merge(&self.counts, word, count.to_be_bytes());
        }
        batch.durability(Durability::Buffered).commit()
    }

    /// The numbers of the texts that have all these words.
    fn find(&self, words: &[&str]) -> Result<BTreeSet<u32>> {
        // All lists with one parallel read.
        let lists = self.texts_with.multi_get(words)?;
        let sets = lists.iter().map(|list| match list {
            Some(list) => {
                list.chunks_exact(4).map(|at| u32::from_be_bytes([at[0], at[1], at[2], at[3]])).collect()
            }
            None => BTreeSet::new(),
        });
        Ok(sets.reduce(|one, other| &one & &other).unwrap_or_default())
    }

    fn count(&self, word: &str) -> Result<u64> {
        let count = self.counts.get(word)?;
        Ok(count.map_or(0, |count| u64::from_be_bytes(count.as_ref().try_into().expect("8 bytes"))))
    }
}

/// A text that anyone can make again from its number.
fn text(number: u32) -> String {
    let mut state = u64::from(number) * 2 + 1;
    let word = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (state >> 40) as f64 / (1u64 << 24) as f64;
        format!("word{}", (WORDS as f64).powf(share) as u64)
    };
    (0..40).map(word).collect::<Vec<_>>().join(" ")
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Database::builder().memory(16 << 20).open(dir.path().join("texts.db"))?;
    let index = Index::open(&db)?;
    std::thread::scope(|scope| {
        let of_thread = |first: u32| {
            let index = &index;
            move || (first..TEXTS).step_by(4).try_for_each(|number| index.add(number, &text(number)))
        };
        let threads: Vec<_> = (0..4).map(|first| scope.spawn(of_thread(first))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    // After a crash a text may be indexed once more; a list has each number once. (A count would not.)
    let first = text(7);
    let word = first.split(' ').next().expect("a word");
    index.texts_with.merge(word, 7u32.to_be_bytes())?;
    db.compact()?;

    let asked = ["word7", "word70", "word2"];
    let found = index.find(&asked)?;
    let has_all = |number: &u32| {
        let text = text(*number);
        asked.iter().all(|asked| text.split(' ').any(|word| word == *asked))
    };
    assert_eq!(found, (0..TEXTS).filter(has_all).collect());
    let expected: usize =
        (0..TEXTS).map(|number| text(number).split(' ').filter(|word| *word == "word7").count()).sum();
    assert_eq!(index.count("word7")?, expected as u64);
    println!("{} of {TEXTS} texts have {asked:?}; {:?} is there {expected} times", found.len(), asked[0]);
    Ok(())
}
