//! See `sapwood_openraft::fuzzing::replicated`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood_openraft::fuzzing::replicated(input));
