//! Changes a running target from one document to another, or leaves it unchanged.

use crate::steps::Step;
use std::fmt;

/// A running target, which can execute steps.
pub trait Running {
    /// The data that is needed to roll a step back. It holds the disks that the step removed,
    /// because a RAM disk would otherwise lose its data.
    type Undo;

    /// Executes a step. If the step fails, it has changed nothing.
    ///
    /// # Errors
    /// The reason, as one sentence.
    fn take(&mut self, step: &Step) -> Result<Self::Undo, String>;

    /// Rolls a step back. The caller has already rolled back all later steps.
    ///
    /// # Errors
    /// The reason, as one sentence. The step then stays in effect.
    fn take_back(&mut self, undo: Self::Undo) -> Result<(), String>;
}

/// A failed change of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The step that failed.
    pub step: Box<Step>,
    /// The reason, as one sentence.
    pub reason: String,
    /// The failed rollbacks, one sentence each. The list is empty if the target has its old state.
    pub left: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        for sentence in &self.left {
            write!(f, "; and the rollback failed: {sentence}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failed {}

/// Executes all steps, or none.
///
/// # Errors
/// The step that failed. The earlier steps have been rolled back.
pub fn reconcile<R: Running>(running: &mut R, steps: &[Step]) -> Result<Vec<R::Undo>, Failed> {
    let mut done = Vec::new();
    for step in steps {
        match running.take(step) {
            Ok(undo) => done.push(undo),
            Err(reason) => {
                let left = take_all_back(running, done);
                return Err(Failed { step: Box::new(step.clone()), reason, left });
            }
        }
    }
    Ok(done)
}

/// Rolls the steps of [`reconcile`] back, the last one first. Returns the failures as sentences.
pub fn take_all_back<R: Running>(running: &mut R, done: Vec<R::Undo>) -> Vec<String> {
    done.into_iter().rev().filter_map(|undo| running.take_back(undo).err()).collect()
}
