//! Types of keys and values that the tests use.

use proptest::prelude::*;
use sapwood_typed::TypedKey;

/// A struct as key.
#[derive(TypedKey, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Berth {
    pub harbour: String,
    pub number: u16,
}

/// A struct without names.
#[derive(TypedKey, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair(pub i8, pub Option<String>);

/// An enum as key, with room for more.
#[derive(TypedKey, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    AtSea,
    Berth(Berth),
    #[key(tag = 10)]
    Position {
        latitude: i32,
        longitude: i32,
    },
    Dock(String, u8),
}

/// A value.
#[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq)]
pub struct Ship {
    pub built: u16,
    pub owners: Vec<String>,
    pub tonnes: Option<f32>,
}

/// Letters that matter to the encoding of strings, and some others.
pub fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![Just('\0'), Just('\u{1}'), Just('\u{2}'), Just('a'), any::<char>()],
        0..6,
    )
    .prop_map(|letters| letters.into_iter().collect())
}

pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![0u8..3, 0xfeu8..=0xff, any::<u8>()], 0..6)
}

pub fn berth() -> impl Strategy<Value = Berth> {
    (text(), 0u16..3).prop_map(|(harbour, number)| Berth { harbour, number })
}

pub fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::AtSea),
        berth().prop_map(Place::Berth),
        (-2..2i32, any::<i32>()).prop_map(|(latitude, longitude)| Place::Position { latitude, longitude }),
        (text(), any::<u8>()).prop_map(|(name, number)| Place::Dock(name, number)),
    ]
}
