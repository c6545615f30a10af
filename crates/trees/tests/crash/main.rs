//! Power loss at every device operation, and at thousands of random points, for every tree whose contract promises anything.

mod pio;
mod suite;
