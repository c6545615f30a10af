//! See `sapwood_typed::fuzzing::typed_key`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood_typed::fuzzing::typed_key(input));
