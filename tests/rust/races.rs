//! The shared shell under random schedules.
