//! Any bytes are read or refused, and no index is named that is not a volume.
#![no_main]

use traces::msr_csv::Reader;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut reader = Reader::new(input);
    let mut steps = 0;
    while let Some(step) = reader.next() {
        steps += 1;
        match step {
            Ok(step) => assert!(usize::from(step.tree) < reader.volumes().len()),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(reader.next().is_none(), "it goes on behind an error");
            }
        }
    }
    assert!(steps <= input.len(), "more steps than bytes");
});
