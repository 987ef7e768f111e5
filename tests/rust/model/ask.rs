//! What a begin would answer, asked beforehand.

use crate::world::World;
use blockyard_core::{Answer, Error, Request, Stop};

impl World {
    /// What a begin would answer is what it answers; to ask changes nothing.
    pub(crate) fn ask(&mut self, request: &Request<'_>) {
        let mut state = self.cache.lock();
        let before = state.digest();
        let need = state.dry_run(request);
        assert_eq!(state.digest(), before, "it was only asked");
        drop(state);
        self.asked = Some(need);
    }

    pub(crate) fn compare_asked(&mut self, answer: &Result<Answer, Error>) {
        let Some(need) = self.asked.take() else {
            return;
        };
        let need = match need {
            Ok(need) => need,
            Err(error) => return assert_eq!(answer.as_ref().err(), Some(&error)),
        };
        let spare = (need.free + need.evictable).cast_signed() - need.promised.cast_signed();
        assert_eq!(need.available, spare);
        assert_eq!(
            need.fits,
            need.ever && need.waits.is_none() && need.need.cast_signed() <= spare
        );
        match answer {
            Ok(Answer::Begun(begun)) => {
                assert!(need.fits);
                let loads: u32 = begun.hits[1..].iter().sum();
                assert_eq!(need.device, begun.hits[0]);
                assert!(
                    need.loads == loads || (need.loads > loads && begun.stop == Stop::Promised)
                );
                assert!(need.stop == begun.stop || begun.stop == Stop::Promised);
            }
            Ok(Answer::Soon(flight)) => assert_eq!((need.fits, need.waits), (false, Some(*flight))),
            Err(Error::TooLarge { .. }) => assert!(!need.ever && !need.fits),
            Err(Error::NoRoom {
                need: told,
                free,
                evictable,
                promised,
                available,
                ..
            }) => {
                assert!(need.ever && !need.fits && need.waits.is_none());
                let here = (need.need, need.free, need.evictable, need.promised);
                assert_eq!((*told, *free, *evictable, *promised), here);
                assert_eq!(*available, need.available);
            }
            other => panic!("{other:?}"),
        }
    }
}
