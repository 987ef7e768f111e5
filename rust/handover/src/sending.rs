//! What a server sends of a block: its bytes and their sum, or the sum alone. Before each piece the hold is asked, and
//! behind the last one the generation. INV-36a, INV-36b

use crate::frame::Frame;
use crate::link::{Link, Lost};
use crate::offers::Held;
use crate::places::{CHUNK, Pieces, add};
use crate::served::{Counts, Limits, count};
use blockyard_disk::Lent;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_128;

/// How often a thread looks what has ended.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// Bytes a second that a reader takes at least.
const SLOWEST: u32 = 1 << 20;

static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// Sends blocks of a rank.
pub(crate) struct Sending<'server> {
    pub(crate) memory: &'server Lent<dyn Pieces>,
    pub(crate) bytes: u32,
    pub(crate) limits: &'server Limits,
    pub(crate) counts: &'server Counts,
}

impl Sending<'_> {
    /// Sends the sum of a block, of which another carrier brings the bytes.
    pub(crate) fn sum(
        &self,
        link: &mut Link,
        (ask, at): (u32, usize),
        held: &Held,
    ) -> Result<(), Lost> {
        let slot = held.slots[at];
        let (mut sum, mut done) = (XxHash3_128::new(), 0);
        while done < self.bytes as usize && held.hold.is_held() {
            let touched = self.memory.touch(|memory| {
                memory.source(slot as usize, done, CHUNK, &mut |pieces| {
                    let all = pieces.iter().map(|piece| piece.len()).sum();
                    add(&mut sum, pieces, all);
                    done += all;
                });
            });
            touched.ok_or(Lost::Closed)?;
        }
        let generation = held.hold.generation(at).filter(|_| held.hold.is_held());
        link.say(&Frame::Block {
            ask,
            at: at as u32,
            slot,
            length: 0,
            generation: held.generations[at],
        });
        link.say(&Frame::Sum {
            sum: sum.finish_128(),
            generation: generation.unwrap_or(0),
        });
        if generation != Some(held.generations[at]) {
            count(&self.counts.stale);
        }
        Ok(())
    }

    /// Sends a block. Where its hold ends meanwhile, zeros go in place of the rest: what is there then is another's.
    pub(crate) fn send(
        &self,
        link: &mut Link,
        (ask, at): (u32, usize),
        held: &Held,
    ) -> Result<(), Lost> {
        let (slot, bytes) = (held.slots[at], self.bytes);
        link.say(&Frame::Block {
            ask,
            at: at as u32,
            slot,
            length: bytes,
            generation: held.generations[at],
        });
        let mut until =
            Instant::now() + self.limits.patience + Duration::from_secs((bytes / SLOWEST).into());
        let (mut sum, mut done, mut stale) = (XxHash3_128::new(), 0, false);
        while done < bytes as usize {
            if !stale && !held.hold.is_held() {
                stale = true;
                until = until.min(Instant::now() + self.limits.finish);
            }
            let sent = if stale {
                let zeros = &ZEROS[..CHUNK.min(bytes as usize - done)];
                link.send(&[IoSlice::new(zeros)])?
            } else {
                let mut said = Ok(0);
                let touched = self.memory.touch(|memory| {
                    memory.source(slot as usize, done, CHUNK, &mut |pieces| {
                        said = link.send(pieces);
                        add(&mut sum, pieces, *said.as_ref().unwrap_or(&0));
                    });
                });
                touched.ok_or(Lost::Closed)?;
                said?
            };
            done += sent;
            if sent == 0 {
                if Instant::now() >= until {
                    return Err(Lost::Late);
                }
                link.wait_for_room(until.min(Instant::now() + LOOK))?;
            }
        }
        let generation = held
            .hold
            .generation(at)
            .filter(|_| !stale && held.hold.is_held());
        link.say(&Frame::Sum {
            sum: sum.finish_128(),
            generation: generation.unwrap_or(0),
        });
        let counts = self.counts;
        count(&counts.blocks);
        counts.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
        if generation != Some(held.generations[at]) {
            count(&counts.stale);
        }
        Ok(())
    }
}
