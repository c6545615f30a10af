//! See `sapwood_typed::fuzzing::typed_schema`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood_typed::fuzzing::typed_schema(input));
