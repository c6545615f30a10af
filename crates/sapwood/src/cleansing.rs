//! Cleansing: log areas are brought to their leaves, portion by portion, each an edit of its own, while others read and write.
//! Which of them, and how far, is another question each time: what a flush has found [`due`], [`all`] of them, or those that scans have
//! [`paid`] for. How a block is cleansed is in [`crate::tree::cleanse`], and what else scans can pay for in [`crate::tree::merge_layers`].

mod all;
mod due;
mod paid;
#[cfg(test)]
pub(crate) mod tests;
