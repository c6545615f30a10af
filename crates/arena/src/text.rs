//! Values that are parts of a text of the user's.

use crate::engine::{Failed, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// No more of the text is used, in bytes: it is in the worker's memory, which is limited, and codecs look back no further than a part of it.
const TEXT_MAX: u64 = 4 << 20;

/// Reads the beginning of the text in `path`, for as long as the process lives: a worker opens few stores.
pub(crate) fn read(path: &Path, value_len: usize) -> Result<&'static [u8]> {
    let failed = |error| Failed::new("read the text", format!("{}: {error}", path.display()));
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(TEXT_MAX).read_to_end(&mut text)).map_err(failed)?;
    if text.len() < 2 * value_len {
        let reason =
            format!("{} has {} bytes, which are no two values of {value_len}", path.display(), text.len());
        return Err(Failed::new("read the text", reason));
    }
    text.shrink_to_fit();
    Ok(text.leak())
}

/// The part of `text` that follows from `seed`.
pub(crate) fn part(text: &[u8], seed: u64, len: usize) -> &[u8] {
    let places = text.len().saturating_sub(len) as u64 + 1;
    let from = (seed % places) as usize;
    &text[from..text.len().min(from + len)]
}

#[cfg(test)]
mod tests {
    use crate::records::tests::records;
    use crate::{Kind, Records};
    use std::fs;

    #[test]
    fn values_are_parts_of_the_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        let text: Vec<u8> = (0..3000u32).flat_map(|word| format!("{word} ").into_bytes()).collect();
        fs::write(&path, &text).unwrap();
        let records =
            Records { kind: Kind::Text, text: Some(super::read(&path, 100).unwrap()), ..records(10) };
        let (mut one, mut other) = (Vec::new(), Vec::new());
        records.value(7, 1, &mut one);
        records.value(7, 2, &mut other);
        assert!(records.fits(7, &one) && records.fits(7, &other) && one != other);
        let holds = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
        assert!(holds(&one[8..]) && holds(&other[8..]));
    }

    #[test]
    fn a_text_that_is_missing_or_short_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        assert!(super::read(&path, 100).unwrap_err().to_string().contains("text"));
        fs::write(&path, [b'a'; 199]).unwrap();
        assert!(super::read(&path, 100).unwrap_err().to_string().contains("199 bytes"));
        assert_eq!(super::part(b"abc", u64::MAX, 3), b"abc");
    }
}
