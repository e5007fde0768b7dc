// Commands that are typed into a terminal and not run: whoever reads them presses Enter.
import * as vscode from 'vscode'

export function type(name: string, words: string[], cwd: string | undefined): void {
  // hidden until it is shown, so that the Python extension types nothing of its own behind the command
  const terminal = vscode.window.createTerminal({ name, cwd, hideFromUser: true })
  terminal.show()
  const short = words.map((word) => (cwd && word.startsWith(`${cwd}/`) ? word.slice(cwd.length + 1) : word))
  terminal.sendText(short.map(quoted).join(' '), false)
}

/** As a POSIX shell reads it back. Line ends would run what stands before them, so a word with one is refused. */
export function quoted(word: string): string {
  if (/[\r\n\0]/.test(word)) throw new Error('a line end in a command: nothing was typed')
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`
}
