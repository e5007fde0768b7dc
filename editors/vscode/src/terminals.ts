// Commands that are typed into a terminal and not run: whoever reads them presses Enter.
import { dirname } from 'node:path'
import * as vscode from 'vscode'

export function type(name: string, words: string[], cwd: string | undefined): void {
  const program = words[0] ?? ''
  // hidden until it is shown, so that the Python extension types nothing of its own behind the command
  const terminal = vscode.window.createTerminal({ name, cwd, hideFromUser: true })
  terminal.show()
  const own = cwd && dirname(program).startsWith(`${cwd}/`) ? program.slice(cwd.length + 1) : program
  terminal.sendText([own, ...words.slice(1)].map(quoted).join(' '), false)
}

/** As a POSIX shell reads it back. Line ends would run what stands before them, so a word with one is refused. */
export function quoted(word: string): string {
  if (/[\r\n\0]/.test(word)) throw new Error('a line end in a command: nothing was typed')
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`
}
