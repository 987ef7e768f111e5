//! The bytes of a recording: a header, then a frame for each request. All numbers are little-endian.
//!
//! A frame has the length of its body, the CRC-32 of that, as zlib has it, and the body. A header is 16
//! bytes that stand nowhere else, and a frame: the version, the tokens per block, and when it began, in
//! nanoseconds since 1970. The body of a request has four numbers and 8 bytes for each full block of its
//! prompt.

/// What a header begins with. No text and no archive does, and a copy that changes line ends breaks it.
pub const MAGIC: [u8; 16] = *b"\x89BLOCKYARD REC\r\n";

/// Bytes of a header.
pub const HEADER: usize = MAGIC.len() + FRAME + 16;

/// Bytes of a request that has no full block.
pub const REQUEST: usize = FRAME + 32;

/// The version of the format, which each header names.
pub(crate) const VERSION: u32 = 1;

/// Bytes before a body.
const FRAME: usize = 8;

/// What a recording says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tokens per block.
    pub block_size: u32,
    /// The zero of all times behind it, in nanoseconds since 1970.
    pub began: u64,
}

impl Header {
    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0; FRAME]);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.block_size.to_le_bytes());
        bytes.extend(self.began.to_le_bytes());
        seal(&mut bytes[MAGIC.len()..]);
        bytes
    }

    /// Reads one; None where it is torn or of another version.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        (Self::version(bytes)? == VERSION).then(|| Self {
            block_size: number(bytes, 4),
            began: u64::from(number(bytes, 8)) | u64::from(number(bytes, 12)) << 32,
        })
    }

    /// The version of a header that is whole.
    pub(crate) fn version(bytes: &[u8]) -> Option<u32> {
        let (magic, frame) = bytes.get(..HEADER)?.split_at(MAGIC.len());
        let mut sealed = frame.to_vec();
        seal(&mut sealed);
        (magic == MAGIC && sealed == frame).then(|| number(bytes, 0))
    }
}

/// A number in the body of a whole header.
fn number(header: &[u8], at: usize) -> u32 {
    let at = MAGIC.len() + FRAME + at;
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Nanoseconds from the header's zero to its arrival.
    pub arrived: u64,
    /// Nanoseconds from the header's zero to its end.
    pub ended: u64,
    /// Tokens of its prompt.
    pub prompt: u64,
    /// Tokens of its answer.
    pub answer: u64,
}

impl Request {
    /// Its frame, but for length and sum, which [`seal`] makes where there is time.
    #[inline]
    pub(crate) fn frame<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8; 32]>) -> Vec<u8> {
        let mut frame = vec![0; REQUEST + 8 * keys.len()];
        let (numbers, rest) = frame[FRAME..].as_chunks_mut::<8>().0.split_at_mut(4);
        numbers[0] = self.arrived.to_le_bytes();
        numbers[1] = self.ended.to_le_bytes();
        numbers[2] = self.prompt.to_le_bytes();
        numbers[3] = self.answer.to_le_bytes();
        for (place, key) in rest.iter_mut().zip(keys) {
            *place = folded(key).to_le_bytes();
        }
        frame
    }
}

/// Eight bytes of a key. All its bytes are in them, each part turned by another number of bits: keys that
/// an engine makes may be a short hash with zeros around it, or one that is repeated.
#[inline]
fn folded(key: &[u8; 32]) -> u64 {
    let parts = key.as_chunks::<8>().0;
    let part = |at: usize| u64::from_le_bytes(parts[at]).rotate_left(13 * at as u32);
    part(0) ^ part(1) ^ part(2) ^ part(3)
}

/// Writes length and sum of a frame.
pub(crate) fn seal(frame: &mut [u8]) {
    let (head, body) = frame.split_at_mut(FRAME);
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&sum(body).to_le_bytes());
}

/// CRC-32 as zlib has it, so that any reader has it too.
fn sum(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        while at < 256 {
            let (mut value, mut bit) = (at as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 {
                    value >> 1 ^ 0xEDB8_8320
                } else {
                    value >> 1
                };
                bit += 1;
            }
            table[at] = value;
            at += 1;
        }
        table
    };
    let step = |sum: u32, byte: &u8| sum >> 8 ^ TABLE[((sum ^ u32::from(*byte)) & 0xFF) as usize];
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_zlib() {
        assert_eq!(sum(b"123456789"), 0xCBF4_3926);
        assert_eq!(sum(b""), 0);
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_not_with_a_flipped_bit() {
        let header = Header {
            block_size: 16,
            began: 1 << 40 | 7,
        };
        let bytes = header.bytes();
        assert_eq!((bytes.len(), Header::of(&bytes)), (HEADER, Some(header)));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::of(&flipped), None, "bit {bit}");
        }
        assert_eq!(Header::of(&bytes[..HEADER - 1]), None);
    }

    #[test]
    fn keys_that_are_padded_or_repeated_stay_apart() {
        let mut seen = std::collections::HashSet::new();
        for number in 1..=100_u64 {
            for at in 0..4 {
                let mut key = [0; 32];
                key[8 * at..8 * at + 8].copy_from_slice(&number.to_le_bytes());
                assert!(seen.insert(folded(&key)), "{number} at {at}");
            }
            let twice: [u8; 32] = std::array::from_fn(|at| number.to_le_bytes()[at % 8]);
            assert!(seen.insert(folded(&twice)), "{number}, repeated");
        }
    }
}
