//! The bytes of frames, behind their head: all numbers are little-endian, and what has no fixed length says how long it
//! is before it.

use crate::frame::{Frame, HEAD, Role, Told, VERSION, Wrong};
use crate::offers::{Gone, MOST_BLOCKS, OfferId};

/// Fields of an identity.
const MOST_FIELDS: usize = 256;

impl Gone {
    fn code(self) -> u8 {
        match self {
            Self::Ended => 0,
            Self::Cleared => 1,
            Self::Reset => 2,
            Self::NoRoom => 3,
            Self::Soon => 4,
        }
    }

    fn of(code: u8) -> Self {
        match code {
            1 => Self::Cleared,
            2 => Self::Reset,
            3 => Self::NoRoom,
            4 => Self::Soon,
            _ => Self::Ended,
        }
    }
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Self::Nonce { .. } => 1,
            Self::Proof(_) => 2,
            Self::Hello { .. } => 3,
            Self::Differs { .. } => 4,
            Self::Take { .. } => 5,
            Self::Blocks { .. } => 6,
            Self::Read { sums, .. } => {
                if *sums {
                    16
                } else {
                    7
                }
            }
            Self::Block { .. } => 8,
            Self::Sum { .. } => 9,
            Self::Gone { .. } => 10,
            Self::Renew { .. } => 11,
            Self::Done { .. } => 12,
            Self::Refuse { .. } => 13,
            Self::Where => 14,
            Self::Memory(_) => 15,
        }
    }

    /// Appends its bytes.
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend([0, 0, 0, 0, VERSION, self.kind(), 0, 0]);
        self.put_content(&mut Writer(into));
        let length = (into.len() - start - HEAD) as u32;
        into[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    fn put_content(&self, to: &mut Writer<'_>) {
        match self {
            Self::Nonce {
                role,
                secret,
                boot,
                nonce,
            } => {
                to.bytes(&[u8::from(*role == Role::Decode), u8::from(*secret)]);
                to.u32(*boot);
                to.bytes(nonce);
            }
            Self::Proof(proof) => to.bytes(proof),
            Self::Hello {
                name,
                rank,
                bytes,
                fields,
            } => {
                to.text(name);
                to.u32(*rank);
                to.u32(*bytes);
                to.u32(fields.len() as u32);
                for (name, value) in fields {
                    to.text(name);
                    to.text(value);
                }
            }
            Self::Differs { field, here } => {
                to.text(field);
                to.text(here);
            }
            Self::Take {
                ask,
                id,
                boot,
                reader,
                first,
            } => {
                to.u32(*ask);
                to.lease(id, *reader);
                to.u32(*boot);
                to.u32(*first);
            }
            Self::Blocks {
                ask,
                more,
                lease_ms,
                blocks,
            } => {
                for number in [*ask, *more, *lease_ms, blocks.len() as u32] {
                    to.u32(number);
                }
                for block in blocks {
                    to.bytes(&block.key);
                    to.bytes(&block.parent);
                    to.u32(block.slot);
                    to.u64(block.generation);
                }
            }
            Self::Read {
                ask,
                id,
                reader,
                first,
                count,
                sums: _,
            } => {
                to.u32(*ask);
                to.lease(id, *reader);
                to.u32(*first);
                to.u32(*count);
            }
            Self::Block {
                ask,
                at,
                slot,
                length,
                generation,
            } => {
                for number in [*ask, *at, *slot, *length] {
                    to.u32(number);
                }
                to.u64(*generation);
            }
            Self::Sum { sum, generation } => {
                to.bytes(&sum.to_le_bytes());
                to.u64(*generation);
            }
            Self::Gone { ask, id, why } => {
                to.u32(*ask);
                to.bytes(id);
                to.bytes(&[why.code()]);
            }
            Self::Renew { id, reader } | Self::Done { id, reader } => to.lease(id, *reader),
            Self::Refuse { id, reader, why } => {
                to.lease(id, *reader);
                to.text(why);
            }
            Self::Where => {}
            Self::Memory(said) => {
                to.u32(said.len() as u32);
                to.bytes(said);
            }
        }
    }

    /// Reads what follows a head; `None` for a kind that is unknown here.
    pub(crate) fn read(kind: u8, content: &[u8]) -> Result<Option<Self>, Wrong> {
        let mut from = Reader(content);
        let frame = match kind {
            1..=4 => from.greeting(kind),
            5 => from.take(),
            6 => from.blocks(),
            7 | 16 => from.read(kind == 16),
            8 => from.block(),
            9 => from.sum(),
            10 => from.gone(),
            11..=13 => from.word(kind),
            14 => Some(Self::Where),
            15 => from.memory(),
            _ => return Ok(None),
        };
        let frame = frame.filter(|_| from.0.is_empty());
        frame.map(Some).ok_or(Wrong::Content(kind))
    }
}

/// What a frame is written to.
struct Writer<'into>(&'into mut Vec<u8>);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// A text, cut where it is longer than 65,535 bytes.
    fn text(&mut self, text: &str) {
        let end = (0..=text.len().min(usize::from(u16::MAX)))
            .rev()
            .find(|&end| text.is_char_boundary(end));
        let text = &text[..end.unwrap_or(0)];
        self.bytes(&(text.len() as u16).to_le_bytes());
        self.bytes(text.as_bytes());
    }

    fn lease(&mut self, id: &OfferId, reader: u64) {
        self.bytes(id);
        self.u64(reader);
    }
}

/// What is left of a frame. Each call is `None` where that is too short.
struct Reader<'content>(&'content [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::from(u16::from_le_bytes(self.bytes()?));
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn greeting(&mut self, kind: u8) -> Option<Frame> {
        Some(match kind {
            1 => {
                let [role, secret] = self.bytes()?;
                let role = match role {
                    0 => Role::Prefill,
                    1 => Role::Decode,
                    _ => return None,
                };
                Frame::Nonce {
                    role,
                    secret: secret != 0,
                    boot: self.u32()?,
                    nonce: self.bytes()?,
                }
            }
            2 => Frame::Proof(self.bytes()?),
            3 => {
                let (name, rank, bytes) = (self.text()?, self.u32()?, self.u32()?);
                let count = self.u32()? as usize;
                if count > MOST_FIELDS {
                    return None;
                }
                let mut field = || Some((self.text()?, self.text()?));
                let fields = (0..count).map(|_| field()).collect::<Option<_>>()?;
                Frame::Hello {
                    name,
                    rank,
                    bytes,
                    fields,
                }
            }
            _ => Frame::Differs {
                field: self.text()?,
                here: self.text()?,
            },
        })
    }

    fn take(&mut self) -> Option<Frame> {
        Some(Frame::Take {
            ask: self.u32()?,
            id: self.bytes()?,
            reader: self.u64()?,
            boot: self.u32()?,
            first: self.u32()?,
        })
    }

    fn blocks(&mut self) -> Option<Frame> {
        let (ask, more, lease_ms) = (self.u32()?, self.u32()?, self.u32()?);
        let count = self.u32()? as usize;
        // As many as it says are there: nothing is allocated for others.
        if more as usize > MOST_BLOCKS || self.0.len() != count.checked_mul(76)? {
            return None;
        }
        let mut block = || {
            Some(Told {
                key: self.bytes()?,
                parent: self.bytes()?,
                slot: self.u32()?,
                generation: self.u64()?,
            })
        };
        let blocks = (0..count).map(|_| block()).collect::<Option<_>>()?;
        Some(Frame::Blocks {
            ask,
            more,
            lease_ms,
            blocks,
        })
    }

    fn read(&mut self, sums: bool) -> Option<Frame> {
        Some(Frame::Read {
            sums,
            ask: self.u32()?,
            id: self.bytes()?,
            reader: self.u64()?,
            first: self.u32()?,
            count: self.u32()?,
        })
    }

    fn block(&mut self) -> Option<Frame> {
        Some(Frame::Block {
            ask: self.u32()?,
            at: self.u32()?,
            slot: self.u32()?,
            length: self.u32()?,
            generation: self.u64()?,
        })
    }

    fn sum(&mut self) -> Option<Frame> {
        Some(Frame::Sum {
            sum: u128::from_le_bytes(self.bytes()?),
            generation: self.u64()?,
        })
    }

    fn gone(&mut self) -> Option<Frame> {
        let (ask, id) = (self.u32()?, self.bytes()?);
        let [code] = self.bytes()?;
        let why = Gone::of(code);
        Some(Frame::Gone { ask, id, why })
    }

    fn memory(&mut self) -> Option<Frame> {
        let length = self.u32()? as usize;
        let (said, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Frame::Memory(said.to_vec()))
    }

    fn word(&mut self, kind: u8) -> Option<Frame> {
        let (id, reader) = (self.bytes()?, self.u64()?);
        Some(match kind {
            11 => Frame::Renew { id, reader },
            12 => Frame::Done { id, reader },
            _ => Frame::Refuse {
                id,
                reader,
                why: self.text()?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{BLOCK, BLOCKS_PER_FRAME, MOST, MOST_UNPROVEN, SUM, head};
    use proptest::prelude::*;

    /// One of each kind.
    #[expect(clippy::too_many_lines, reason = "likewise")]
    fn frames() -> Vec<Frame> {
        let (id, reader) = ([3; 16], 1 << 40);
        let told = Told {
            key: [1; 32],
            parent: [2; 32],
            slot: 7,
            generation: 1 << 33,
        };
        vec![
            Frame::Nonce {
                role: Role::Decode,
                secret: true,
                boot: 5,
                nonce: [4; 32],
            },
            Frame::Proof([8; 32]),
            Frame::Hello {
                name: "one".into(),
                rank: 1,
                bytes: 4096,
                fields: vec![
                    ("model".into(), "Llama".into()),
                    (String::new(), "é".into()),
                ],
            },
            Frame::Differs {
                field: "dtype".into(),
                here: "float16".into(),
            },
            Frame::Take {
                ask: 1,
                id,
                boot: 5,
                reader,
                first: 2,
            },
            Frame::Blocks {
                ask: 1,
                more: 3,
                lease_ms: 10_000,
                blocks: vec![told; 3],
            },
            Frame::Read {
                ask: 2,
                id,
                reader,
                first: 1,
                count: 9,
                sums: false,
            },
            Frame::Block {
                ask: 2,
                at: 1,
                slot: 7,
                length: 4096,
                generation: 1 << 33,
            },
            Frame::Sum {
                sum: 1 << 100,
                generation: 1 << 33,
            },
            Frame::Gone {
                ask: 2,
                id,
                why: Gone::NoRoom,
            },
            Frame::Renew { id, reader },
            Frame::Done { id, reader },
            Frame::Refuse {
                id,
                reader,
                why: "late".into(),
            },
            Frame::Where,
            Frame::Memory(vec![7; 300]),
            Frame::Read {
                ask: 2,
                id,
                reader,
                first: 1,
                count: 9,
                sums: true,
            },
        ]
    }

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.put(&mut bytes);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Option<Frame>, Wrong> {
        let (first, rest) = bytes.split_first_chunk().unwrap();
        let (length, kind) = head(*first, MOST)?;
        assert_eq!(length, rest.len());
        Frame::read(kind, rest)
    }

    #[test]
    fn what_is_said_is_heard() {
        let mut kinds = HashSet::new();
        for frame in frames() {
            let bytes = bytes_of(&frame);
            assert_eq!(read(&bytes), Ok(Some(frame)));
            kinds.insert(bytes[5]);
        }
        assert_eq!(kinds.len(), 16);
    }

    #[test]
    fn the_bytes_stay_what_they_are() {
        let bytes = bytes_of(&Frame::Renew {
            id: [9; 16],
            reader: 2,
        });
        assert_eq!(bytes[..8], [24, 0, 0, 0, 1, 11, 0, 0]);
        assert_eq!((bytes[8], bytes[23], bytes[24], bytes.len()), (9, 9, 2, 32));
        let block = &frames()[7];
        assert_eq!(bytes_of(block).len(), BLOCK);
        assert_eq!(bytes_of(&frames()[8]).len(), SUM);
    }

    #[test]
    fn a_frame_that_is_cut_or_longer_than_its_kind_is_none() {
        for frame in frames() {
            let bytes = bytes_of(&frame);
            for end in HEAD..bytes.len() {
                assert!(
                    Frame::read(bytes[5], &bytes[HEAD..end]).is_err(),
                    "{frame:?}"
                );
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(Frame::read(bytes[5], &longer[HEAD..]).is_err(), "{frame:?}");
        }
    }

    #[test]
    fn a_kind_that_is_unknown_is_passed_over_and_another_version_is_not() {
        assert_eq!(Frame::read(200, &[1, 2, 3]), Ok(None));
        let mut bytes = [0; HEAD];
        bytes[4] = 9;
        assert_eq!(head(bytes, MOST), Err(Wrong::Version(9)));
        assert!(Wrong::Version(9).to_string().contains("version 9"));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_allocated() {
        let with = |length: u32| {
            let mut bytes = [0; HEAD];
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[4] = VERSION;
            bytes
        };
        assert!(head(with(MOST_UNPROVEN as u32), MOST_UNPROVEN).is_ok());
        for (length, most) in [
            (4097, MOST_UNPROVEN),
            (MOST as u32 + 1, MOST),
            (u32::MAX, MOST),
        ] {
            assert_eq!(head(with(length), most), Err(Wrong::Long { length, most }));
        }
    }

    #[test]
    fn more_blocks_or_fields_than_are_there_are_none() {
        for count in [1, 4, u32::MAX, u32::MAX / 76 + 1] {
            let mut bytes = bytes_of(&frames()[5]);
            bytes[HEAD + 12..HEAD + 16].copy_from_slice(&count.to_le_bytes());
            assert_eq!(
                Frame::read(6, &bytes[HEAD..]),
                Err(Wrong::Content(6)),
                "{count}"
            );
        }
        let mut hello = bytes_of(&Frame::Hello {
            name: String::new(),
            rank: 0,
            bytes: 1,
            fields: Vec::new(),
        });
        let end = hello.len();
        hello[end - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Frame::read(3, &hello[HEAD..]), Err(Wrong::Content(3)));
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_at_a_character() {
        let mut bytes = bytes_of(&Frame::Refuse {
            id: [0; 16],
            reader: 0,
            why: "é".repeat(40_000),
        });
        let Ok(Some(Frame::Refuse { why, .. })) = Frame::read(13, &bytes[HEAD..]) else {
            panic!("it is none");
        };
        assert_eq!(why.len(), 65_534);
        bytes[HEAD + 26] = 0xff;
        assert!(Frame::read(13, &bytes[HEAD..]).is_err(), "it is no text");
    }

    #[test]
    fn the_most_blocks_of_one_frame_fit_it() {
        let told = Told {
            key: [1; 32],
            parent: [2; 32],
            slot: 7,
            generation: 1,
        };
        let bytes = bytes_of(&Frame::Blocks {
            ask: 1,
            more: 0,
            lease_ms: 1,
            blocks: vec![told; BLOCKS_PER_FRAME],
        });
        assert!(bytes.len() - HEAD <= MOST);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(kind: u8, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Frame::read(kind, &bytes);
        }

        #[test]
        fn what_is_read_from_flipped_bytes_is_said_so_again(at in 0..16_usize, bit: usize) {
            let mut bytes = bytes_of(&frames()[at]);
            let bits = ((bytes.len() - HEAD) * 8).max(1);
            let bit = HEAD * 8 + bit % bits;
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            if let Ok(Some(frame)) = Frame::read(bytes[5], &bytes[HEAD..]) {
                prop_assert_eq!(bytes_of(&frame).len(), bytes.len());
            }
        }
    }

    use std::collections::HashSet;
}
