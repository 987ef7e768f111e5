//! Recency: what was used least recently goes first.

use super::order::Order;
use super::usage::Usage;
use crate::base::Result;

#[derive(Hash, Debug)]
pub(crate) struct Recency;

impl Order for Recency {
    const CLASSES: usize = 1;

    fn new(_room: usize) -> Result<Self> {
        Ok(Self)
    }

    fn class(&self, _life: Usage) -> u8 {
        0
    }

    fn value(&self, _class: u8, age: u32) -> u32 {
        u32::MAX - age
    }
}
