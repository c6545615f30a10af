//! The records: keys and values by number, the same for every store, made on the spot and kept nowhere.
//!
//! Invariants:
//! 1. keys are in the order of their numbers, all of one length, and share no more than their leading bytes;
//! 2. a value begins with a tag of its key, so that a store that answers with another record's value is found out;
//! 3. number and version determine every byte.

use crate::text;
use serde::{Deserialize, Serialize};

/// What values are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Random bytes.
    Incompressible,
    /// Random bytes in the first half, one byte repeated in the second.
    Half,
    /// Events as JSON, such as a server notes of its users.
    Events,
    /// Parts of a text of the user's: [`Records::text`].
    Text,
}

impl Kind {
    /// Whether compression is of use.
    pub fn is_compressible(self) -> bool {
        self != Self::Incompressible
    }
}

/// All records of a race. Record `i` of those loaded has number 2 i; odd numbers are for those that come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// How many are loaded.
    pub count: u64,
    /// Bytes of a key, 16 and more.
    pub key_len: usize,
    /// Bytes of a value, 8 and more.
    pub value_len: usize,
    /// What values are like.
    pub kind: Kind,
    /// What values are parts of, if they are of [`Kind::Text`]: a worker reads it when it opens a store.
    #[serde(skip)]
    pub text: Option<&'static [u8]>,
}

/// Keys have this many bytes, and more.
const KEY_LEN_MIN: usize = 16;

/// Values have this many bytes, and more: the tag.
const VALUE_LEN_MIN: usize = 8;

/// Numbers lie this many bits apart, and are below 2 to the power of the rest.
const GAP_BITS: u32 = 24;

impl Records {
    /// What is wrong with these settings, if anything is.
    pub fn refusal(&self) -> Option<String> {
        if self.key_len < KEY_LEN_MIN || self.key_len > 1024 {
            return Some(format!("keys have {KEY_LEN_MIN} to 1024 bytes, not {}", self.key_len));
        }
        if self.value_len < VALUE_LEN_MIN || self.value_len > 1 << 20 {
            return Some(format!("values have {VALUE_LEN_MIN} to 1048576 bytes, not {}", self.value_len));
        }
        (self.count < 2 || self.count >= 1 << (64 - GAP_BITS - 2))
            .then(|| format!("there can be 2 to 2^38 records, not {}", self.count))
    }

    /// Bytes of one record.
    pub fn len(&self) -> u64 {
        (self.key_len + self.value_len) as u64
    }

    /// Whether nothing is to be loaded.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The key of number `number`, into `key`.
    pub fn key(&self, number: u64, key: &mut Vec<u8>) {
        let random = mix(number ^ 0x6b65_7900_0000_0000);
        key.clear();
        key.extend_from_slice(&(number << GAP_BITS | random >> (64 - GAP_BITS)).to_be_bytes());
        fill(random, self.key_len - 8, key);
    }

    /// The value of number `number` in its `version`, into `value`.
    pub fn value(&self, number: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&tag(number));
        let seed = mix(number ^ version << 40 ^ 0x7661_6c00);
        match self.kind {
            Kind::Incompressible => fill(seed, self.value_len - VALUE_LEN_MIN, value),
            Kind::Half => fill(seed, (self.value_len / 2).max(VALUE_LEN_MIN) - VALUE_LEN_MIN, value),
            Kind::Events => event(seed, value),
            Kind::Text => {
                let text = self.text.unwrap_or_default();
                value.extend_from_slice(text::part(text, seed, self.value_len - VALUE_LEN_MIN));
            }
        }
        value.resize(self.value_len, b'.');
    }

    /// Whether `value` may be one of number `number`.
    pub fn fits(&self, number: u64, value: &[u8]) -> bool {
        value.len() == self.value_len && value.starts_with(&tag(number))
    }

    /// The number that a key was made of.
    pub fn number(&self, key: &[u8]) -> Option<u64> {
        let head: [u8; 8] = key.get(..8)?.try_into().ok()?;
        (key.len() == self.key_len).then(|| u64::from_be_bytes(head) >> GAP_BITS)
    }
}

fn tag(number: u64) -> [u8; 8] {
    mix(number ^ 0x7461_6700).to_le_bytes()
}

/// Appends an event that follows from `seed`: some 200 bytes, of which a tenth is known from nothing but the event.
fn event(seed: u64, to: &mut Vec<u8>) {
    const KINDS: [&str; 5] = ["page_view", "add_to_cart", "search", "purchase", "sign_in"];
    const PATHS: [&str; 4] = ["/shop/item", "/shop/category", "/account/orders", "/help/article"];
    const AGENTS: [&str; 3] =
        ["Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Windows NT 10.0)", "Mozilla/5.0 (iPhone)"];
    let pick = |shift: u32, of: u64| (seed >> shift) % of;
    let one = |words: &[&'static str], shift| words[pick(shift, words.len() as u64) as usize];
    let text = format!(
        "{{\"time\":\"2026-11-{:02}T{:02}:{:02}:{:02}Z\",\"user\":{},\"session\":\"{:08x}\",\"event\":\"{}\",\
         \"path\":\"{}/{}\",\"milliseconds\":{},\"agent\":\"{}\",\"is_new\":{}}}",
        1 + pick(0, 28),
        pick(5, 24),
        pick(10, 60),
        pick(16, 60),
        pick(20, 1_000_000),
        seed as u32,
        one(&KINDS, 33),
        one(&PATHS, 37),
        pick(40, 20_000),
        pick(46, 900),
        one(&AGENTS, 55),
        seed >> 63 == 0,
    );
    to.extend_from_slice(text.as_bytes());
}

/// Appends `len` bytes that follow from `seed`.
fn fill(seed: u64, len: usize, to: &mut Vec<u8>) {
    let end = to.len() + len;
    let mut state = seed;
    while to.len() < end {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = mix(state).to_le_bytes();
        to.extend_from_slice(&word[..word.len().min(end - to.len())]);
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection that leaves no pattern.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn records(count: u64) -> Records {
        Records { count, key_len: 16, value_len: 100, kind: Kind::Incompressible, text: None }
    }

    #[test]
    fn keys_are_in_order_and_values_know_theirs() {
        let records = records(1000);
        let (mut before, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..2000 {
            records.key(number, &mut key);
            records.value(number, 3, &mut value);
            assert!(key > before && key.len() == 16 && value.len() == 100);
            assert_eq!(records.number(&key), Some(number));
            assert!(records.fits(number, &value) && !records.fits(number + 1, &value));
            before.clone_from(&key);
        }
        let mut other = Vec::new();
        records.value(1999, 4, &mut other);
        assert!(other != value && records.fits(1999, &other), "versions differ");
        assert_eq!(records.number(b"short"), None);
    }

    #[test]
    fn events_are_cut_or_filled_to_the_length_that_is_wanted() {
        for value_len in [60, 200, 400] {
            let records = Records { value_len, kind: Kind::Events, ..records(10) };
            let (mut one, mut other) = (Vec::new(), Vec::new());
            records.value(7, 1, &mut one);
            records.value(7, 2, &mut other);
            assert!(records.fits(7, &one) && records.fits(7, &other) && one != other);
            assert!(one[8..].starts_with(b"{\"time\":\"2026-11-"));
        }
    }

    #[test]
    fn half_of_a_value_can_be_compressed() {
        let (mut half, mut whole) = (Vec::new(), Vec::new());
        Records { kind: Kind::Half, ..records(2) }.value(1, 1, &mut half);
        records(2).value(1, 1, &mut whole);
        let dots = |value: &[u8]| value.iter().rev().take_while(|byte| **byte == b'.').count();
        assert_eq!((half.len(), dots(&half)), (100, 50));
        assert!(dots(&whole) < 4);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert_eq!(records(1000).refusal(), None);
        assert!(Records { key_len: 15, ..records(1000) }.refusal().unwrap().contains("15"));
        assert!(Records { value_len: 7, ..records(1000) }.refusal().is_some());
        assert!(records(1).refusal().is_some() && records(1 << 50).refusal().is_some());
    }
}
