//! Backups: of one moment under load, killed on either side, damaged anywhere, one on top of the other.

mod attempts;
mod faults;
mod flips;
mod followed;
mod ground;
mod increments;
mod load;
mod moments;
mod points;
mod refused;
mod repaired;
