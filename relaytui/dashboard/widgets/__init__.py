"""The dashboard's own widgets. All draw by lines: a repaint costs what changed, not what there is."""
