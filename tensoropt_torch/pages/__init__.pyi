from .picture import draw_frontier, picture_html

__all__ = ["draw_frontier", "picture_html"]
