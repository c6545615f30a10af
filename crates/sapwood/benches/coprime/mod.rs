//! Steps that come to every record once, in an order that looks like chance.

/// The first number from `first` on that has no divisor in common with the count of records.
pub fn step(first: u128, records: u64) -> Option<u128> {
    (first..).find(|step| divisor(*step, u128::from(records)) == 1)
}

/// The greatest common one.
fn divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { divisor(b, a % b) }
}
