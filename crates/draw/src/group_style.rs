//! The color and texture of a group of blocks, equal in all views.

use vramscope_trace::Category;

use crate::bitmap::Color;
use crate::theme::{Texture, Theme};

/// The color and texture of a group of blocks, as an index into a theme's colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupStyle {
    /// The color of a group, by its index in a fixed order of all groups; see
    /// [`Theme::group_color`].
    Group(usize),
    /// The color of a category, by its index in `Category::ALL`.
    Category(usize),
    /// The color of blocks without a group of their own.
    #[default]
    Other,
}

impl GroupStyle {
    /// Returns the style of a category's blocks.
    pub fn of_category(category: Category) -> Self {
        Self::Category(Category::ALL.iter().position(|&other| other == category).unwrap_or(0))
    }

    /// Returns the style's color in a theme.
    #[must_use]
    pub fn color(self, theme: &Theme) -> Color {
        match self {
            Self::Group(index) => theme.group_color(index),
            Self::Category(index) => theme.categories.get(index).copied().unwrap_or(theme.categories[0]),
            Self::Other => theme.dim.mix(theme.well, 0.45),
        }
    }

    /// Returns the texture that a theme draws on the style's color.
    #[must_use]
    pub fn texture(self, theme: &Theme) -> Texture {
        match self {
            Self::Group(index) => theme.group_texture(index),
            Self::Category(index) => theme.category_texture(index),
            Self::Other => Texture::None,
        }
    }
}
