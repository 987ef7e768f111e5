//! Values out of bytes that another process has sent: whatever they are, they are read or refused.

/// What was read, or what is wrong.
pub(crate) type Read<T> = std::result::Result<T, &'static str>;

const CUT: &str = "they were cut: pass them whole";

/// What is left of the bytes. All numbers are little endian.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next bytes.
    pub(crate) fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (next, rest) = self.0.split_first_chunk().ok_or(CUT)?;
        self.0 = rest;
        Ok(*next)
    }

    /// The next `count` values: room is made for what is there alone.
    pub(crate) fn all<T, const N: usize>(
        &mut self,
        count: usize,
        one: fn([u8; N]) -> T,
    ) -> Read<Vec<T>> {
        let next = self.next(count.checked_mul(N).ok_or(CUT)?)?;
        Ok(next.as_chunks().0.iter().map(|value| one(*value)).collect())
    }

    pub(crate) fn number(&mut self) -> Read<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// A number of values.
    pub(crate) fn count(&mut self) -> Read<usize> {
        usize::try_from(self.number()?).map_err(|_| CUT)
    }

    /// Bytes behind their length.
    pub(crate) fn bytes(&mut self) -> Read<Vec<u8>> {
        let length = self.count()?;
        Ok(self.next(length)?.to_vec())
    }

    /// Whether something follows: a byte, which is 0 or 1.
    pub(crate) fn flag(&mut self) -> Read<bool> {
        match self.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err("a flag in them is neither 0 nor 1"),
        }
    }

    fn next(&mut self, length: usize) -> Read<&'a [u8]> {
        let (next, rest) = self.0.split_at_checked(length).ok_or(CUT)?;
        self.0 = rest;
        Ok(next)
    }
}
