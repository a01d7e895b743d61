import { render } from 'preact';
import { begin } from './api/session';
import { App } from './app';
import { applyTheme } from './lib/theme';
import './styles/tokens.css';
import './styles/base.css';
import './styles/shell.css';
import './styles/parts.css';
import './styles/forms.css';
import './styles/timeline.css';
import './styles/charts.css';
import './styles/tree.css';
import './styles/pages.css';

applyTheme();
void begin();

const root = document.getElementById('app');
if (root) render(<App />, root);
