//! Compressed nodes: leaves and log pieces as they are stored where that takes fewer bytes. In memory they are as other nodes.
//!
//! ```text
//! offset size
//!      0    6  magic, kind and level as in a node
//!      6    1  codec: 1 LZ4 (block format), 2 Zstandard (a frame), 3 the same with the keyspace's dictionary
//!      7    1  0: not encrypted
//!      8   20  node id, epoch and keyspace as in a node
//!     28    4  len: bytes of the whole compressed node
//!     32    4  count: entries, at least 1
//!     36    4  CRC-32C of bytes 0..36 and 40..len
//!     40    4  bytes of the node that it becomes
//!     44    4  bytes of the packed entries
//!     48    …  the packed entries, compressed
//! ```
//! In a node that is not compressed byte 6 is zero. The packed entries: [`crate::storage::packed`].
//!
//! Invariants:
//! 1. A compressed node is shorter than the node that it becomes.
//! 2. All bytes are untrusted: nothing is decompressed before the checksum was found right, and what comes of it is checked as any
//!    node is.

use crate::bytecode::Reader;
use crate::compression::Compression;
use crate::encryption::Encryption;
use crate::error::unsupported::UNSUPPORTED;
use crate::storage::dictionary::{Dictionaries, Dictionary, Training};
use crate::storage::frames::Frames;
use crate::storage::node::{self, HEADER, Header, NODE_LEN_MAX, Name, Node, Refusal, refuse};
use crate::storage::packed::{pack, unpack};
use crate::storage::sample_room::{SampleRoom, SharedTraining};
use crate::storage::{KEPT, encrypted};
use std::cell::RefCell;
use std::sync::Arc;
#[cfg(feature = "zstd")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
#[cfg(feature = "zstd")]
use zstd::zstd_safe;

/// Offset of the codec in a node's header (format).
const CODEC_AT: usize = 6;
/// Bytes before the compressed ones (format).
const HEAD: usize = 48;
/// Tags of the format: the codec.
const LZ4: u8 = 1;
#[cfg_attr(not(feature = "zstd"), allow(dead_code, reason = "there is no encoder"))]
const ZSTD: u8 = 2;
const ZSTD_DICTIONARY: u8 = 3;

/// A compressed node is at least this part (a 16th) shorter: what saves less is not worth what reading it takes.
const SAVES: usize = 16;
/// After failures one after the other, so many nodes (count) of a keyspace are stored without a try at most: they cost next to nothing then,
/// and that values compress again is noticed soon.
const UNTRIED_MAX: u32 = 63;

/// How a node is compressed.
#[derive(Clone, Copy)]
enum How<'a> {
    Lz4,
    /// With this level.
    #[cfg(feature = "zstd")]
    Zstd(u8),
    #[cfg(feature = "zstd")]
    Dictionary(&'a zstd_safe::CDict<'static>),
    #[cfg(not(feature = "zstd"))]
    #[expect(dead_code, reason = "so that there is a lifetime")]
    Never(&'a ()),
}

/// Working memory of a thread.
#[derive(Default)]
struct Scratch {
    packed: Vec<u8>,
    #[cfg(feature = "zstd")]
    decoder: Option<zstd_safe::DCtx<'static>>,
    #[cfg(feature = "zstd")]
    encoder: Option<zstd_safe::CCtx<'static>>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[cfg(test)]
thread_local! {
    /// This thread reads as a program would that was built without Zstandard.
    pub(crate) static WITHOUT_ZSTD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether Zstandard cannot be read.
fn is_without_zstd() -> bool {
    #[cfg(test)]
    if WITHOUT_ZSTD.get() {
        return true;
    }
    cfg!(not(feature = "zstd"))
}

/// Runs work with this thread's working memory. At the thread's end that may be gone already, and a destructor still use a database.
fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
    let done = work(&mut scratch);
    _ = SCRATCH.try_with(|kept| kept.replace(scratch));
    done
}

/// Whether the bytes are those of a compressed node, if they are those of a node.
pub(crate) fn is_compressed(stored: &[u8]) -> bool {
    stored.get(CODEC_AT).is_some_and(|codec| *codec != 0)
}

/// Checks all that can be checked of a stored node without decompressing it.
fn check(stored: &[u8]) -> Result<Header, Refusal> {
    let head = node::decode_header(stored)?;
    let (name, is_compressed) = (head.name, is_compressed(stored));
    if is_compressed && (name.is_inner() || stored[CODEC_AT] > ZSTD_DICTIONARY || stored.len() < HEAD) {
        let (expected, codec) = ("that of a compressed leaf or log piece", stored[CODEC_AT]);
        return refuse(CODEC_AT, "codec of a node", expected, format!("codec {codec}, level {}", name.level));
    }
    Ok(head)
}

/// Decodes a compressed node into a frame, and checks every byte.
pub(crate) fn decode(
    stored: &[u8],
    frames: &Arc<Frames>,
    dictionaries: &Dictionaries,
) -> Result<Node, Refusal> {
    let Header { name, count, crc, .. } = check(stored)?.unencrypted()?;
    let dictionary = dictionaries.get(name.keyspace).filter(|_| stored[CODEC_AT] == ZSTD_DICTIONARY);
    if dictionary.is_none() && stored[CODEC_AT] == ZSTD_DICTIONARY {
        return refuse(CODEC_AT, "codec of a node", "a dictionary of its keyspace", "none");
    }
    let mut reader = Reader::new(&stored[HEADER..HEAD]);
    let (Some(len), Some(packed)) = (reader.u32(), reader.u32()) else {
        return refuse(HEADER, "lengths of a compressed node", "8 bytes", "fewer");
    };
    let (len, packed) = (len as usize, packed as usize);
    // What is packed has no offsets, and three lengths of at least a byte, an entry.
    if len > NODE_LEN_MAX || len <= stored.len() || packed > len + 8 {
        let found = format!("{packed} bytes for a node of {len}");
        return refuse(
            HEADER,
            "lengths of a compressed node",
            format!("those of {} bytes", stored.len()),
            found,
        );
    }
    with_scratch(|scratch| {
        scratch.decompress(stored[CODEC_AT], dictionary, &stored[HEAD..], packed)?;
        let unpacked = frames.fill(len, |bytes| {
            node::put_header(bytes, name, count, 0);
            unpack(&scratch.packed[..packed], count as usize, &mut bytes[..])
        });
        scratch.forget_long();
        match unpacked {
            Some(bytes) => Node::decompressed(bytes, name, count, crc, stored.len()),
            None => {
                refuse(HEAD, "packed entries of a node", format!("{count} entries of {len} bytes"), "others")
            }
        }
    })
}

impl Scratch {
    /// Decompresses to the first `len` bytes of `packed`.
    #[cfg_attr(not(feature = "zstd"), expect(unused_variables, reason = "LZ4 has no dictionary"))]
    fn decompress(
        &mut self,
        codec: u8,
        dictionary: Option<&Arc<Dictionary>>,
        bytes: &[u8],
        len: usize,
    ) -> Result<(), Refusal> {
        if self.packed.len() < len {
            self.packed.resize(len, 0);
        }
        let place = &mut self.packed[..len];
        if codec != LZ4 && is_without_zstd() {
            let found = "this program was built without the feature `zstd`";
            return refuse(CODEC_AT, UNSUPPORTED, "LZ4", found);
        }
        let written = match codec {
            LZ4 => lz4_flex::block::decompress_into(bytes, place).map_err(|error| error.to_string()),
            #[cfg(feature = "zstd")]
            _ => {
                let decoder = self.decoder.get_or_insert_with(zstd_safe::DCtx::create);
                let written = match dictionary {
                    Some(dictionary) => decoder.decompress_using_ddict(place, bytes, dictionary.decoder()),
                    None => decoder.decompress(place, bytes),
                };
                written.map_err(|code| zstd_safe::get_error_name(code).to_owned())
            }
            #[cfg(not(feature = "zstd"))]
            _ => Err("no codec".into()),
        };
        match written {
            Ok(written) if written == len => Ok(()),
            Ok(written) => refuse(HEAD, "compressed entries of a node", format!("{len} bytes"), written),
            Err(error) => refuse(HEAD, "compressed entries of a node", format!("{len} bytes"), error),
        }
    }

    /// Compresses `packed` behind what is in `out`. Returns `None` if it does not become as short as `most` bytes.
    fn compress(&mut self, how: How<'_>, out: &mut Vec<u8>, most: usize) -> Option<()> {
        let from = out.len();
        let written = match how {
            How::Lz4 => {
                out.resize(from + lz4_flex::block::get_maximum_output_size(self.packed.len()), 0);
                lz4_flex::block::compress_into(&self.packed, &mut out[from..]).ok()?
            }
            // If it is not that short, there is an error.
            #[cfg(feature = "zstd")]
            How::Zstd(level) => {
                out.resize(from + most, 0);
                let encoder = self.encoder.get_or_insert_with(zstd_safe::CCtx::create);
                encoder.compress(&mut out[from..], &self.packed, i32::from(level)).ok()?
            }
            #[cfg(feature = "zstd")]
            How::Dictionary(dictionary) => {
                out.resize(from + most, 0);
                let encoder = self.encoder.get_or_insert_with(zstd_safe::CCtx::create);
                encoder.compress_using_cdict(&mut out[from..], &self.packed, dictionary).ok()?
            }
            #[cfg(not(feature = "zstd"))]
            How::Never(_) => return None,
        };
        out.truncate(from + written);
        (written <= most).then_some(())
    }

    fn forget_long(&mut self) {
        if self.packed.capacity() > KEPT {
            self.packed = Vec::new();
        }
    }
}

/// What is known of how the nodes of a keyspace compress.
pub(crate) struct Compressor {
    pub compression: Compression,
    /// Tries that failed, one after the other.
    failures: AtomicU32,
    /// How many nodes are stored without a try.
    untried: AtomicU32,
    /// Bytes of nodes for 256 bytes that are stored, of late.
    ratio: AtomicU32,
    training: Arc<SharedTraining>,
    /// The keyspace's dictionary, made ready, when the first node is compressed with it.
    #[cfg(feature = "zstd")]
    encoder: OnceLock<zstd_safe::CDict<'static>>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").field("compression", &self.compression).finish_non_exhaustive()
    }
}

impl PartialEq for Compressor {
    fn eq(&self, other: &Self) -> bool {
        self.compression == other.compression
    }
}

impl Eq for Compressor {}

/// What 1 is as a ratio (count): 256ths are exact enough, and no ratio overflows.
const ONE: u32 = 256;

impl Compressor {
    pub fn new(compression: Compression) -> Self {
        // As it is usual, until it is known.
        let ratio = if compression == Compression::None { ONE } else { 2 * ONE };
        Self {
            compression,
            failures: AtomicU32::new(0),
            untried: AtomicU32::new(0),
            ratio: AtomicU32::new(ratio),
            training: Arc::default(),
            #[cfg(feature = "zstd")]
            encoder: OnceLock::new(),
        }
    }

    /// That of the same keyspace with another compression. There is one dictionary whatever changes while it is trained.
    pub fn changed_to(&self, compression: Compression) -> Self {
        Self { training: Arc::clone(&self.training), ..Self::new(compression) }
    }

    /// The dictionary that was trained of the keyspace's leaves.
    pub fn trained(&self) -> Option<Arc<Dictionary>> {
        match self.compression {
            Compression::ZstdDictionary { .. } => self.training.lock().dictionary().cloned(),
            _ => None,
        }
    }

    /// How nodes are compressed, with this dictionary if there is one, and the codec that says so.
    fn how(&self, dictionary: Option<&Dictionary>) -> Option<(How<'_>, u8)> {
        match (self.compression, dictionary) {
            (Compression::None, _) => None,
            (Compression::Lz4, _) => Some((How::Lz4, LZ4)),
            #[cfg(feature = "zstd")]
            (Compression::ZstdDictionary { level }, Some(dictionary)) => {
                let made = || zstd_safe::CDict::create(dictionary.bytes(), i32::from(level));
                Some((How::Dictionary(self.encoder.get_or_init(made)), ZSTD_DICTIONARY))
            }
            #[cfg(feature = "zstd")]
            (Compression::Zstd { level } | Compression::ZstdDictionary { level }, _) => {
                Some((How::Zstd(level), ZSTD))
            }
            #[cfg(not(feature = "zstd"))]
            _ => None,
        }
    }

    /// Compresses an encoded node with these entries into `out`, with the keyspace's dictionary if there is one; it may become one of the samples
    /// that a dictionary is trained of, if there is room for such. Returns its checksum, or `None` if it is to be stored as it is.
    pub fn compress<'a>(
        &self,
        name: Name,
        encoded: &[u8],
        entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
        (dictionary, samples): (Option<&Dictionary>, Option<&SampleRoom>),
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        let (how, codec) = self.how(dictionary).filter(|_| !name.is_inner())?;
        let untried = self.untried.load(Relaxed);
        if untried > 0 {
            self.untried.store(untried - 1, Relaxed);
            return None;
        }
        let crc = with_scratch(|scratch| {
            out.clear();
            out.resize(HEAD, 0);
            let (count, most) = (entries.len(), encoded.len() - encoded.len() / SAVES);
            pack(&mut scratch.packed, entries);
            if let (Compression::ZstdDictionary { level }, None, 0, Some(room)) =
                (self.compression, dictionary, name.level, samples)
            {
                Training::see(&self.training, &scratch.packed, room, level);
            }
            let packed = scratch.packed.len();
            let compressed = scratch.compress(how, out, most.saturating_sub(HEAD));
            scratch.forget_long();
            compressed?;
            let len = out.len() as u32;
            node::put_header(out, name, count as u32, len);
            out[CODEC_AT] = codec;
            out[HEADER..HEADER + 4].copy_from_slice(&(encoded.len() as u32).to_le_bytes());
            out[HEADER + 4..HEAD].copy_from_slice(&(packed as u32).to_le_bytes());
            Some(node::put_checksum(out))
        });
        self.learn(encoded.len(), crc.map_or(encoded.len(), |_| out.len()));
        crc
    }

    /// A node of `len` bytes took `stored` bytes.
    fn learn(&self, len: usize, stored: usize) {
        let failures = if stored < len { 0 } else { self.failures.load(Relaxed) + 1 };
        self.failures.store(failures, Relaxed);
        self.untried.store(((1u64 << failures.min(16)) - 1).min(UNTRIED_MAX.into()) as u32, Relaxed);
        let (ratio, now) =
            (self.ratio.load(Relaxed), (len as u64 * u64::from(ONE) / stored.max(1) as u64) as u32);
        self.ratio.store(ratio - ratio / 8 + now.min(64 * ONE) / 8, Relaxed);
    }

    /// The length of a leaf that is stored in `len` bytes, or in as many more as it can have in memory.
    pub fn leaf_len(&self, len: usize) -> usize {
        let whole = len.saturating_mul(self.ratio.load(Relaxed) as usize) / ONE as usize;
        whole.clamp(len, len.max(LEAF_MAX))
    }
}

/// How full a leaf of `len` bytes is that is stored in `stored`: 1 if it is as long as leaves become. `leaf_len` is the length of stored ones.
pub(crate) fn fill(len: usize, stored: usize, leaf_len: usize) -> f64 {
    let longest = if stored < len { leaf_len.max(LEAF_MAX) } else { leaf_len };
    (len as f64 / longest as f64).max(stored as f64 / leaf_len as f64)
}

/// The longest leaf in bytes that is made because it compresses well: a get unpacks all of it, and the cache keeps all of it.
const LEAF_MAX: usize = 16 << 10;

/// A node as it is stored, for the collector, which only moves it: its checksum is right, its entries are not looked at.
#[derive(Clone, Debug)]
pub(crate) struct StoredNode {
    bytes: bytes::Bytes,
    name: Name,
    crc: u32,
}

impl StoredNode {
    pub fn decode(bytes: bytes::Bytes) -> Result<Self, Refusal> {
        let Header { name, crc, .. } = check(&bytes)?;
        Ok(Self { bytes, name, crc })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn name(&self) -> Name {
        self.name
    }

    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The node, to look into it.
    pub fn open(
        &self,
        encryption: &Encryption,
        frames: &Arc<Frames>,
        dictionaries: &Dictionaries,
    ) -> Result<Node, Refusal> {
        if encryption.is_on() {
            return encrypted::decode(encryption, &self.bytes, frames, dictionaries);
        }
        if is_compressed(&self.bytes) {
            return decode(&self.bytes, frames, dictionaries);
        }
        Node::decode(self.bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::KeyspaceId;
    use crate::storage::entries::Entries;
    use crate::storage::node::NodeId;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    const CODECS: [Compression; 2] = [Compression::Lz4, Compression::Zstd { level: 3 }];

    fn name(level: u8) -> Name {
        Name { id: NodeId(42), level, epoch: 7, keyspace: KeyspaceId(3) }
    }

    fn entries_of(records: &[(Vec<u8>, Vec<u8>)]) -> Entries {
        let mut entries = Entries::default();
        records.iter().for_each(|(key, payload)| entries.push(key, &[payload]));
        entries
    }

    /// A node and what it is stored as, if it is compressed.
    fn stored(
        compressor: &Compressor,
        level: u8,
        records: &[(Vec<u8>, Vec<u8>)],
    ) -> (Vec<u8>, Option<(Vec<u8>, u32)>) {
        let (entries, mut encoded, mut out) = (entries_of(records), Vec::new(), Vec::new());
        node::encode(&mut encoded, name(level), &entries, records.len());
        let crc = compressor.compress(
            name(level),
            &encoded,
            entries.records(records.len()),
            (None, None),
            &mut out,
        );
        (encoded, crc.map(|crc| (out, crc)))
    }

    fn texts(count: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let text = |number: u32| format!("value {} of the record {number}", number * 7).repeat(3);
        (0..count).map(|number| (format!("key{number:05}").into_bytes(), text(number).into_bytes())).collect()
    }

    /// The format cannot change without this test changing, and the format version with it.
    #[test]
    fn golden_bytes() {
        let records: Vec<_> = (b'a'..b'f').map(|byte| (vec![b'k', byte], vec![b'v'; 30])).collect();
        let (_, compressed) = stored(&Compressor::new(Compression::Lz4), 0, &records);
        let (bytes, crc) = compressed.unwrap();
        assert_eq!(bytes[..8], *b"SapN\x01\0\x01\0");
        assert_eq!(bytes[28..36], [bytes.len() as u8, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[36..40], crc.to_le_bytes());
        assert_eq!(bytes[40..48], [225, 0, 0, 0, 179, 0, 0, 0]);
        let packed = lz4_flex::block::decompress(&bytes[HEAD..], 179).unwrap();
        assert_eq!(packed[..8], [15, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(packed[8..29], *b"\0\x02\x1e\x01\x01\x1e\x01\x01\x1e\x01\x01\x1e\x01\x01\x1ekabcde");
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(
            records in prop::collection::btree_map(
                prop::collection::vec(prop::sample::select(&b"ab"[..]), 1..100), prop::collection::vec(0u8..3, 0..300), 1..60),
            level in prop::sample::select(vec![0, node::PIECE]),
        ) {
            let put = |value: Vec<u8>| if level == 0 { value } else { [&[1], &value[..]].concat() };
            let records: Vec<_> = records.into_iter().map(|(key, value)| (key, put(value))).collect();
            let frames = Frames::new(1 << 20);
            for codec in CODECS {
                let (encoded, compressed) = stored(&Compressor::new(codec), level, &records);
                let Some((bytes, crc)) = compressed else { continue };
                prop_assert!(bytes.len() < encoded.len() && is_compressed(&bytes) && !is_compressed(&encoded));
                let found = decode(&bytes, &frames, &Dictionaries::default()).unwrap();
                prop_assert_eq!(&found.bytes()[HEADER..], &encoded[HEADER..]);
                prop_assert_eq!((found.name(), found.crc(), found.stored_len()), (name(level), crc, bytes.len()));
                let moved = StoredNode::decode(bytes.clone().into()).unwrap();
                prop_assert_eq!((moved.name(), moved.crc()), (name(level), crc));
                let opened = moved.open(&Encryption::NONE, &frames, &Dictionaries::default()).unwrap();
                prop_assert_eq!(&opened.bytes()[..], &found.bytes()[..]);
                prop_assert!(Node::decode(bytes.into()).is_err(), "nothing takes it for one that is not compressed");
            }
        }

        /// Behind a correct checksum too, nothing is believed.
        #[test]
        fn sealed_damage_is_refused_or_harmless(at in 0usize..10_000, byte: u8, codec in 0usize..2) {
            let (_, compressed) = stored(&Compressor::new(CODECS[codec]), 0, &texts(40));
            let (mut bytes, _) = compressed.unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let len = bytes.len() as u32;
            bytes[28..32].copy_from_slice(&len.to_le_bytes());
            node::put_checksum(&mut bytes);
            if let Ok(node) = decode(&bytes, &Frames::new(1 << 20), &Dictionaries::default()) {
                for index in 0..node.count() {
                    prop_assert_eq!(node.search(node.key(index)), Ok(index));
                }
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for codec in CODECS {
            let (bytes, _) = stored(&Compressor::new(codec), 0, &texts(20)).1.unwrap();
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    decode(&flipped, &Frames::new(1 << 20), &Dictionaries::default()).is_err(),
                    "bit {bit}"
                );
                assert!(StoredNode::decode(flipped.into()).is_err(), "bit {bit}");
            }
        }
    }

    /// Lengths that are claimed cost no memory, and other codecs and inner nodes are refused.
    #[test]
    fn what_cannot_be_is_refused() {
        let (bytes, _) = stored(&Compressor::new(Compression::Lz4), 0, &texts(20)).1.unwrap();
        let told = |change: &[(usize, u8)]| {
            let mut bytes = bytes.clone();
            change.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            node::put_checksum(&mut bytes);
            let refusal = decode(&bytes, &Frames::new(1 << 20), &Dictionaries::default()).unwrap_err();
            (refusal.what, refusal.at)
        };
        assert_eq!(told(&[(43, 0x7f)]), ("lengths of a compressed node", HEADER));
        assert_eq!(told(&[(41, 0), (42, 0)]), ("lengths of a compressed node", HEADER));
        assert_eq!(told(&[(47, 0x7f)]), ("lengths of a compressed node", HEADER));
        assert_eq!(told(&[(40, bytes[40] + 1)]), ("packed entries of a node", HEAD));
        assert_eq!(told(&[(44, bytes[44] + 1)]), ("compressed entries of a node", HEAD));
        assert_eq!(told(&[(CODEC_AT, 4)]), ("codec of a node", CODEC_AT));
        assert_eq!(told(&[(4, 2), (5, 1)]), ("codec of a node", CODEC_AT));
        assert_eq!(told(&[(CODEC_AT, ZSTD)]), ("compressed entries of a node", HEAD));
        assert_eq!(told(&[(32, bytes[32] + 1)]), ("packed entries of a node", HEAD));
    }

    #[test]
    fn what_does_not_compress_is_mostly_not_tried_and_leaves_are_as_long_as_before() {
        let random = |seed| {
            let mut value = vec![0; 4000];
            StdRng::seed_from_u64(seed).fill(&mut value[..]);
            vec![(b"key".to_vec(), value)]
        };
        for codec in CODECS {
            let compressor = Compressor::new(codec);
            assert_eq!(compressor.leaf_len(4096), 8192, "as it is usual");
            let mut tried = 0;
            for seed in 0..1000 {
                tried += u32::from(compressor.untried.load(Relaxed) == 0);
                assert!(stored(&compressor, 0, &random(seed)).1.is_none());
            }
            assert!((10..=25).contains(&tried), "{tried} of 1000");
            assert!((4096..4700).contains(&compressor.leaf_len(4096)), "{}", compressor.leaf_len(4096));
            let mut until = 0;
            while stored(&compressor, 0, &texts(40)).1.is_none() {
                until += 1;
            }
            assert!(until <= UNTRIED_MAX, "{until}");
            for _ in 0..30 {
                assert!(stored(&compressor, 0, &texts(40)).1.is_some(), "all are tried again");
            }
            assert_eq!(compressor.leaf_len(4096), LEAF_MAX);
            assert_eq!(compressor.leaf_len(64 << 10), 64 << 10, "none is made shorter");
        }
    }
}
