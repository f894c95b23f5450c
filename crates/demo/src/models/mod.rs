//! Models: a perceptron, a GPT and a small ResNet.

pub mod gpt;
pub mod perceptron;
pub mod resnet;

pub use gpt::{Gpt, GptConfig, Recompute};
pub use perceptron::Perceptron;
pub use resnet::ResNet;
