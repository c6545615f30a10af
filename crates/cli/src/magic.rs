//! What a file is, by its first block: magic bytes and NULs, which no form of records has. Looked at before anything is
//! written, since some of it would pass for records.
//!
//! The libraries for this know types by as little as two letters (`BM`, `MZ`, `ID3`), with which a key may begin. Here are
//! only signatures that no text has.

use crate::format::Format;

/// What a first block is, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// What it is, for "this is ...".
    pub what: &'static str,
    pub remedy: Remedy,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// A program that makes text of it, from a file or in a pipe.
    Filter(&'static str),
    /// A program that needs the file; `FILE` stands for its name, and what comes out has this form.
    Export(&'static str, Format),
    /// It is text of this form.
    Is(Format),
    /// In words.
    Say(&'static str),
}

use Remedy::{Export, Filter, Is, Say};

const NO_RECORDS: Remedy = Say("it has no records; load text of a form that `sapwood load --help` names");
const UNPACK: Remedy = Say("unpack it, and load the files in it");
const SAVE_AS_CSV: Remedy = Say("save it as csv, and load that");
const WITH_DUCKDB: Remedy =
    Export("duckdb -c \"COPY (FROM 'FILE') TO '/dev/stdout' (FORMAT csv)\"", Format::Csv);

/// Offset, bytes, what they are the beginning of, and what to do. The first that fits counts.
const SIGNATURES: &[(usize, &[u8], &str, Remedy)] = &[
    (0, b"\x1f\x8b", "gzip data", Filter("zcat")),
    (0, b"\x1f\x9d", "compressed data (.Z)", Filter("zcat")),
    (0, b"\x28\xb5\x2f\xfd", "zstd data", Filter("zstdcat")),
    (0, b"BZh", "bzip2 data", Filter("bzcat")),
    (0, b"\xfd7zXZ\0", "xz data", Filter("xzcat")),
    (0, b"\x5d\0\0", "lzma data", Filter("xzcat")),
    (0, b"LZIP\x01", "lzip data", Filter("lzip -dc")),
    (0, b"\x04\x22\x4d\x18", "lz4 data", Filter("lz4cat")),
    (0, b"\x02\x21\x4c\x18", "lz4 data", Filter("lz4cat")),
    (0, b"\x89LZO\0", "lzop data", Filter("lzop -dc")),
    (0, b"\xff\x06\0\0sNaPpY", "snappy data", Filter("snzip -dc")),
    (0, b"PK\x03\x04", "a zip archive", Export("unzip -p FILE", Format::Tsv)),
    (0, b"PK\x05\x06", "an empty zip archive", NO_RECORDS),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", Export("7z x -so FILE", Format::Tsv)),
    (0, b"Rar!\x1a\x07", "a rar archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"\xff\xfe\0\0", "UTF-32 text", Filter("iconv -f UTF-32 -t UTF-8")),
    (0, b"\0\0\xfe\xff", "UTF-32 text", Filter("iconv -f UTF-32 -t UTF-8")),
    (0, b"\xff\xfe", "UTF-16 text", Filter("iconv -f UTF-16 -t UTF-8")),
    (0, b"\xfe\xff", "UTF-16 text", Filter("iconv -f UTF-16 -t UTF-8")),
    (
        0,
        b"SQLite format 3\0",
        "an SQLite database",
        Export("sqlite3 -csv -header FILE 'SELECT * FROM table'", Format::Csv),
    ),
    (16, b"\xde\xc0\xef\xbe", "the file of an LMDB database", Export("mdb_dump -n FILE", Format::Mdb)),
    (12, b"\x62\x31\x05\0", "a Berkeley DB database", Export("db_dump FILE", Format::Mdb)),
    (12, b"\x61\x15\x06\0", "a Berkeley DB database", Export("db_dump FILE", Format::Mdb)),
    (0, b"\x13\x57\x9a\xce", "a GDBM database", Say("export it with a program that knows it")),
    (0, b"\xce\x9a\x57\x13", "a GDBM database", Say("export it with a program that knows it")),
    (0, b"REDIS0", "a dump of Redis", Say("export it with a program that knows it")),
    (0, b"PAR1", "a parquet file", WITH_DUCKDB),
    (0, b"ARROW1\0", "an Arrow file", Say("save it as csv or jsonl, and load that")),
    (0, b"ORC\x08", "an ORC file", Say("save it as csv or jsonl, and load that")),
    (0, b"Obj\x01", "an Avro file", Export("avrocat FILE", Format::Jsonl)),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", SAVE_AS_CSV),
    (0, b"\x93NUMPY", "a NumPy array", SAVE_AS_CSV),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document", SAVE_AS_CSV),
    (0, b"%PDF-", "a PDF", NO_RECORDS),
    (0, b"\x89PNG", "an image", NO_RECORDS),
    (0, b"\xff\xd8\xff", "an image", NO_RECORDS),
    (0, b"GIF89a", "an image", NO_RECORDS),
    (0, b"\x7fELF", "a program", NO_RECORDS),
];

/// Signatures of letters alone could begin a key: they count only if what follows is no text.
fn is_plain(signature: &[u8]) -> bool {
    signature.iter().all(|byte| byte.is_ascii_graphic())
}

/// What `block`, the beginning of an input or all of it, is, if it is none of the forms. `assumed` says that nobody told the form.
pub(crate) fn find(block: &[u8], is_all: bool, format: Format, assumed: bool) -> Option<Found> {
    let has_nul = block.contains(&0);
    let is_text = !has_nul && text_of(block).is_some_and(|text| !text.contains(is_odd));
    let fits = |(at, bytes, ..): &&(usize, &[u8], &str, Remedy)| {
        block.get(*at..).is_some_and(|rest| rest.starts_with(bytes)) && !(is_plain(bytes) && is_text)
    };
    if let Some((_, _, what, remedy)) = SIGNATURES.iter().find(fits) {
        let is_sheet = *what == "a zip archive" && contains(block, b"[Content_Types].xml");
        return Some(match is_sheet {
            true => Found { what: "an Office document", remedy: SAVE_AS_CSV },
            false => Found { what, remedy: *remedy },
        });
    }
    if has_nul {
        return Some(of_nuls(block));
    }
    // An LF may follow: then the CR is a byte of the first line.
    let has_lines = block.contains(&b'\n') || !block.contains(&b'\r');
    if is_all && !has_lines && format != Format::Csv {
        return Some(Found {
            what: "text whose lines end as on old Macs, with CR alone",
            remedy: Filter("tr '\\r' '\\n' <"),
        });
    }
    let text = block.trim_ascii_start();
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    if assumed && text.starts_with(b"{\"") {
        return Some(Found { what: "JSON, by its looks", remedy: Is(Format::Jsonl) });
    }
    if assumed && text.starts_with(b"VERSION=3\n") {
        return Some(Found { what: "a dump of LMDB or Berkeley DB, by its looks", remedy: Is(Format::Mdb) });
    }
    None
}

/// The text in `block`, if it is UTF-8. Its last character may be cut off.
fn text_of(block: &[u8]) -> Option<&str> {
    let mut chunks = block.utf8_chunks();
    let text = chunks.next().map_or("", |chunk| chunk.valid());
    (block.len() - text.len() < 4).then_some(text)
}

/// Control characters that are not in text.
fn is_odd(character: char) -> bool {
    character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1b}')
}

fn contains(block: &[u8], part: &[u8]) -> bool {
    block.windows(part.len()).any(|window| window == part)
}

/// A block with NULs: UTF-16 without its mark if every other byte is one, or something unknown.
fn of_nuls(block: &[u8]) -> Found {
    let nuls = |from: usize| block.iter().skip(from).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd, pairs) = (nuls(0), nuls(1), block.len() / 2);
    let remedy = match () {
        () if odd > pairs / 2 && even == 0 => Filter("iconv -f UTF-16LE -t UTF-8"),
        () if even > pairs / 2 && odd == 0 => Filter("iconv -f UTF-16BE -t UTF-8"),
        () => {
            return Found {
                what: "binary data (it has NUL bytes)",
                remedy: Say(
                    "load text of a form that `sapwood load --help` names, in which \\x00 or base64 stands for NULs",
                ),
            };
        }
    };
    Found { what: "UTF-16 text without a byte order mark, by its looks", remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(block: &[u8], format: Format) -> Option<&'static str> {
        find(block, true, format, false).map(|found| found.what)
    }

    #[test]
    fn signatures_are_known_and_text_that_begins_like_them_is_text() {
        for (at, bytes, name, _) in SIGNATURES {
            let mut block = vec![b'x'; *at];
            block.extend_from_slice(bytes);
            block.extend_from_slice(b"\x01\x80\0\0 and more");
            assert!(
                find(&block, true, Format::Tsv, false)
                    .is_some_and(|found| found.what != "binary data (it has NUL bytes)"),
                "{name}"
            );
        }
        for text in [
            "BZh\t1\n",
            "PAR1\t2\n",
            "BM\t1\n",
            "MZ\t1\n",
            "REDIS0\t1\n",
            "GIF89a\t\n",
            "ID3\t1\n",
            "PK\t1\n",
            "Obj\t1\n",
            "ORC\t8\n",
            "",
        ] {
            assert_eq!(what(text.as_bytes(), Format::Tsv), None, "{text}");
        }
        // Cut within a character.
        assert_eq!(what(b"PAR1\tgj\xc3", Format::Tsv), None);
        // Not UTF-8, but text.
        assert_eq!(what(b"gj\xf8a\t1872\n", Format::Tsv), None);
        assert_eq!(what("\u{feff}fram\t1892\n".as_bytes(), Format::Tsv), None);
        assert_eq!(what(b"\x1b[1mbold\x1b[0m\t1\n", Format::Tsv), None);
    }

    #[test]
    fn utf_16_is_known_with_its_mark_and_without() {
        let text = "fram\t1892\nbeagle\t1820\n";
        let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let filter = |block: &[u8]| find(block, true, Format::Tsv, false).map(|found| found.remedy);
        assert_eq!(filter(&little), Some(Filter("iconv -f UTF-16LE -t UTF-8")));
        assert_eq!(filter(&big), Some(Filter("iconv -f UTF-16BE -t UTF-8")));
        assert_eq!(filter(&[b"\xff\xfe", &little[..]].concat()), Some(Filter("iconv -f UTF-16 -t UTF-8")));
        assert_eq!(filter(&[b"\xfe\xff", &big[..]].concat()), Some(Filter("iconv -f UTF-16 -t UTF-8")));
    }

    #[test]
    fn text_of_another_form_is_known_only_where_nobody_told_the_form() {
        assert_eq!(
            find(b"{\"key\":\t1}\n", true, Format::Tsv, true).map(|found| found.remedy),
            Some(Is(Format::Jsonl))
        );
        assert_eq!(
            find(b"VERSION=3\n", true, Format::Tsv, true).map(|found| found.remedy),
            Some(Is(Format::Mdb))
        );
        assert_eq!(find(b"{\"key\":\t1}\n", true, Format::Tsv, false), None);
        assert!(what(b"a\t1\rb\t2\r", Format::Tsv).unwrap().contains("CR alone"));
        assert_eq!(find(b"a\t1\rb\t2\r", false, Format::Tsv, false), None, "more follows");
        assert_eq!(what(b"a,1\rb,2\r", Format::Csv), None);
    }
}
