//! Reading the bytes of keys, which may be anything.

/// Stands for 00 and 01 in the bytes of a string, so that 00 can end it.
pub(super) const ESCAPE: u8 = 1;
/// Ends a string or a list: less than whatever could go on.
pub(super) const END: u8 = 0;

/// The bytes of a key that are not decoded yet.
///
/// ```
/// use sapwood_typed::KeyReader;
///
/// let mut reader = KeyReader::new(&[1, 2, 3]);
/// assert_eq!(reader.take::<2>(), Ok([1, 2]));
/// assert!(reader.take::<2>().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct KeyReader<'b> {
    bytes: &'b [u8],
    /// Flips the bits of what is read: of a reversed key.
    flip: u8,
}

/// Why bytes are not those of a key.
///
/// ```
/// use sapwood_typed::{KeyError, decode_key};
///
/// assert_eq!(decode_key::<u32>(&[1, 2, 3]), Err(KeyError::Short { missing: 1 }));
/// assert_eq!(decode_key::<bool>(&[2]), Err(KeyError::Invalid { what: "a bool is 0 or 1" }));
/// assert_eq!(decode_key::<u8>(&[1, 2]), Err(KeyError::Left { bytes: 1 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The bytes end too early.
    Short {
        /// How many are missing, at least.
        missing: usize,
    },
    /// No value of the type has these bytes.
    Invalid {
        /// The rule that they break.
        what: &'static str,
    },
    /// There are bytes behind the key.
    Left {
        /// How many.
        bytes: usize,
    },
}

impl std::fmt::Display for KeyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short { missing } => write!(f, "at least {missing} bytes are missing at its end"),
            Self::Invalid { what } => f.write_str(what),
            Self::Left { bytes } => write!(f, "{bytes} bytes more than it has"),
        }
    }
}

impl std::error::Error for KeyError {}

impl<'b> KeyReader<'b> {
    /// Begins at the front.
    ///
    /// ```
    /// assert_eq!(sapwood_typed::KeyReader::new(b"fram").left(), 4);
    /// ```
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, flip: 0 }
    }

    /// The number of bytes that are left.
    ///
    /// ```
    /// use sapwood_typed::KeyReader;
    ///
    /// let mut reader = KeyReader::new(b"fram");
    /// reader.take::<3>()?;
    /// assert_eq!(reader.left(), 1);
    /// # Ok::<(), sapwood_typed::KeyError>(())
    /// ```
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next `N` bytes.
    ///
    /// ```
    /// use sapwood_typed::KeyReader;
    ///
    /// assert_eq!(KeyReader::new(&[0, 7]).take().map(u16::from_be_bytes), Ok(7));
    /// ```
    ///
    /// # Errors
    /// [`KeyError::Short`].
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], KeyError> {
        let Some((taken, left)) = self.bytes.split_first_chunk::<N>() else {
            return Err(KeyError::Short { missing: N - self.bytes.len() });
        };
        self.bytes = left;
        Ok(taken.map(|byte| byte ^ self.flip))
    }

    /// The next byte.
    pub(super) fn byte(&mut self) -> Result<u8, KeyError> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// All bytes that are left.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let rest = std::mem::take(&mut self.bytes);
        rest.iter().map(|byte| byte ^ self.flip).collect()
    }

    /// The bytes of a string, up to its end.
    pub(super) fn escaped(&mut self) -> Result<Vec<u8>, KeyError> {
        let end = self.bytes.iter().position(|byte| byte ^ self.flip == END);
        let end = end.ok_or(KeyError::Short { missing: 1 })?;
        let mut string = Vec::with_capacity(end);
        loop {
            match self.byte()? {
                END => return Ok(string),
                ESCAPE => match self.byte()? {
                    byte @ (1 | 2) => string.push(byte - 1),
                    _ => return Err(KeyError::Invalid { what: "in a string, 01 is followed by 01 or 02" }),
                },
                byte => string.push(byte),
            }
        }
    }

    /// Reads with all bits flipped, or as before if they are.
    pub(super) fn flipped<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, KeyError>,
    ) -> Result<T, KeyError> {
        self.flip = !self.flip;
        let taken = read(self);
        self.flip = !self.flip;
        taken
    }
}
