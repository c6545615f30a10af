//! Cleansing: log areas are brought to their leaves, portion by portion, each an edit of its own, while others read and write.
//! Which of them, and how far, is another question each time: what a flush has found [`due`], [`all`] of them, those that scans have
//! [`paid`] for, or those that are long because the database has [`grown`]. How a block is cleansed is in [`crate::tree::cleanse`], and what else scans can pay for in [`crate::tree::merge_layers`].

mod all;
mod due;
mod grown;
mod paid;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use grown::Growth;
