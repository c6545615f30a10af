//! Any bytes are read or refused, and what is read is written and reads back as it was.
#![no_main]

use traces::plain::{Reader, write};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let steps: Vec<_> = Reader::new(input).collect();
    assert!(steps.len() <= input.len(), "more steps than bytes");
    let whole = steps.iter().take_while(|step| step.is_ok()).count();
    assert!(whole + 1 >= steps.len(), "it goes on behind an error");
    let mut again = Vec::new();
    for step in steps.iter().flatten() {
        write(&mut again, *step).expect("memory takes it");
    }
    let read: Vec<_> = Reader::new(&again[..]).map(|step| step.expect("it was written")).collect();
    assert!(read.iter().eq(steps.iter().flatten()), "{}", String::from_utf8_lossy(&again));
});
