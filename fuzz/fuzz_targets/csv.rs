//! Any bytes are read or refused, record by record, and reading ends.
#![no_main]

use sapwood_cli::format::Format;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut reader = Format::Csv.reader(input, None);
    let mut records = 0;
    while reader.next_record().is_some() {
        records += 1;
        assert!(records <= input.len() + 2, "more records than bytes");
    }
});
